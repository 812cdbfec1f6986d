// An extender that does nothing, to compare ours with: every node fits, every node is as good as the others,
// and a pod is bound to the node that kube-scheduler names. It looks at no card, and writes no placement.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

type asked struct {
	Pod       json.RawMessage
	NodeNames []string
}

type fits struct {
	NodeNames                               []string
	FailedNodes, FailedAndUnresolvableNodes map[string]string
	Error                                   string
}

type priority struct {
	Host  string
	Score int
}

type order struct{ PodName, PodNamespace, PodUID, Node string }

type said struct{ Error string }

type object map[string]any

func answering[A any](decide func(A) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var question A
		if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(decide(question))
	}
}

func filter(question asked) any { return fits{NodeNames: question.NodeNames} }

func prioritize(question asked) any {
	all := make([]priority, len(question.NodeNames))
	for i, name := range question.NodeNames {
		all[i].Host = name
	}
	return all
}

func main() {
	listen, url := flag.String("listen", "", "address"), flag.String("api", "", "URL of the API server")
	ca, token := flag.String("ca", "", "PEM bundle to trust"), flag.String("token-file", "", "bearer token")
	flag.Parse()
	bundle, err := os.ReadFile(*ca)
	check(err)
	bearer, err := os.ReadFile(*token)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(bundle)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: trusted},
		ForceAttemptHTTP2: true, // as client-go speaks
	}}

	bind := func(wanted order) any {
		body, err := json.Marshal(object{
			"apiVersion": "v1",
			"kind":       "Binding",
			"metadata":   object{"name": wanted.PodName, "namespace": wanted.PodNamespace, "uid": wanted.PodUID},
			"target":     object{"apiVersion": "v1", "kind": "Node", "name": wanted.Node},
		})
		check(err)
		path := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding", *url, wanted.PodNamespace, wanted.PodName)
		call, err := http.NewRequest("POST", path, bytes.NewReader(body))
		check(err)
		call.Header.Set("Authorization", "Bearer "+string(bearer))
		call.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(call)
		if err != nil {
			return said{err.Error()}
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode >= 300 {
			return said{string(text)}
		}
		return said{}
	}
	http.HandleFunc("/filter", answering(filter))
	http.HandleFunc("/prioritize", answering(prioritize))
	http.HandleFunc("/bind", answering(bind))
	log.Fatal(http.ListenAndServe(*listen, nil))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
