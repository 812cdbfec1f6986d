// The kubelet's PodResources service, by the kubelet's own types and its own gRPC, with an answer from a file.
//
// The answer is read anew at each call: a ListPodResourcesResponse as protobuf's JSON, or
// {"fail": CODE, "message": TEXT}, or {"hang": true}.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type server struct {
	podresources.UnimplementedPodResourcesListerServer
	answer string
}

type odd struct {
	Fail    uint32 `json:"fail"`
	Message string `json:"message"`
	Hang    bool   `json:"hang"`
}

func (s server) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	text, err := os.ReadFile(s.answer)
	if err != nil {
		return nil, err
	}
	var asked odd
	if json.Unmarshal(text, &asked) == nil && asked.Fail != 0 {
		return nil, status.Error(codes.Code(asked.Fail), asked.Message)
	}
	if asked.Hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	answer := &podresources.ListPodResourcesResponse{}
	return answer, protojson.Unmarshal(text, answer)
}

func main() {
	socket := flag.String("socket", "", "path of the socket")
	answer := flag.String("answer", "", "path of the answer")
	flag.Parse()
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	serving := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(serving, server{answer: *answer})
	fmt.Println("ready")
	if err := serving.Serve(listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
