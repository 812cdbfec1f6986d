// A minimal admission webhook, to compare ours with: it decodes the fields that it needs and answers /mutate
// with one small patch and /validate with a yes. Nothing else of what an admission has to do is done here.
// What is posted to /patch is answered to /mutate instead: so one sees what an API server makes of a patch.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"sync/atomic"
)

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID    string `json:"uid"`
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Containers []struct {
				Name      string `json:"name"`
				Resources struct {
					Limits map[string]string `json:"limits"`
				} `json:"resources"`
			} `json:"containers"`
		} `json:"spec"`
	} `json:"object"`
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	PatchType string `json:"patchType,omitempty"`
	Patch     []byte `json:"patch,omitempty"`
}

const (
	labels   = `[{"op":"add","path":"/metadata/labels","value":{"bench.bursar.dev/seen":"true"}}]`
	oneLabel = `[{"op":"add","path":"/metadata/labels/bench.bursar.dev~1seen","value":"true"}]`
)

var given atomic.Pointer[[]byte]

func take(_ http.ResponseWriter, r *http.Request) {
	if patch, err := io.ReadAll(r.Body); err == nil {
		given.Store(&patch)
	}
}

func answer(w http.ResponseWriter, r *http.Request) {
	var asked review
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
		http.Error(w, "malformed AdmissionReview", http.StatusBadRequest)
		return
	}
	said := &response{UID: asked.Request.UID, Allowed: true}
	metadata := asked.Request.Object.Metadata
	for _, container := range asked.Request.Object.Spec.Containers {
		_, asks := container.Resources.Limits["bursar.dev/gpu-percent"]
		if asks && r.URL.Path == "/mutate" && metadata.Labels["bench.bursar.dev/seen"] == "" {
			said.PatchType, said.Patch = "JSONPatch", []byte(oneLabel)
			if patch := given.Load(); patch != nil {
				said.Patch = *patch
			} else if metadata.Labels == nil {
				said.Patch = []byte(labels)
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: said})
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8443", "address")
	cert, key := flag.String("cert", "tls.crt", "PEM"), flag.String("key", "tls.key", "PEM")
	flag.Parse()
	http.HandleFunc("/", answer)
	http.HandleFunc("/patch", take)
	log.Fatal(http.ListenAndServeTLS(*listen, *cert, *key, nil))
}
