// A device plugin that gives out devices of these names, by CDI where a kind is given, and does nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	devices []*deviceplugin.Device
	cdi     string
}

func (plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (p plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p plugin) Allocate(_ context.Context, asked *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for _, each := range asked.ContainerRequests {
		given := &deviceplugin.ContainerAllocateResponse{}
		for _, id := range each.DevicesIds {
			if p.cdi != "" {
				given.CdiDevices = append(given.CdiDevices, &deviceplugin.CDIDevice{Name: p.cdi + "=" + id})
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

func run(socket, resource, cdi string, names []string) error {
	serving := grpc.NewServer()
	p := plugin{cdi: cdi}
	for _, name := range names {
		p.devices = append(p.devices, &deviceplugin.Device{ID: name, Health: deviceplugin.Healthy})
	}
	deviceplugin.RegisterDevicePluginServer(serving, p)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go serving.Serve(listener)
	kubelet, err := grpc.NewClient("unix:"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = deviceplugin.NewRegistrationClient(kubelet).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: filepath.Base(socket), ResourceName: resource,
	})
	return err
}

func main() {
	name := flag.String("name", "", "name of the socket, in the kubelet's folder for plugins")
	resource := flag.String("resource", "", "name of the resource")
	devices := flag.String("devices", "", "names of the devices, parted by commas")
	cdi := flag.String("cdi", "", "kind of the devices in CDI")
	flag.Parse()
	socket := filepath.Join(deviceplugin.DevicePluginPath, *name)
	os.Remove(socket)
	if err := run(socket, *resource, *cdi, strings.Split(*devices, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}
