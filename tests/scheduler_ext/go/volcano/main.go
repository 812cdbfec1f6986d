// Which cards Volcano takes pods for: of each node and its pods, which are JSON on standard input, what the
// packages by which its scheduler counts cards make of the annotations, as a line of JSON.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"volcano.sh/volcano/pkg/scheduler/api/devices/nvidia/gpushare"
	"volcano.sh/volcano/pkg/scheduler/api/devices/nvidia/vgpu"
)

type world struct {
	Node v1.Node  `json:"node"`
	Pods []v1.Pod `json:"pods"`
}

type use struct {
	Memory uint `json:"memory"`
	Cores  uint `json:"cores"`
}

type answer struct {
	Pods   map[string]map[string]use `json:"pods"`   // by name and card, where its memory is counted
	Totals map[string]use            `json:"totals"` // by card
	Index  map[string][]int          `json:"index"`  // of the sharing before vGPU, by pod
}

func main() {
	worlds, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var read world
		if err := worlds.Decode(&read); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		found := answer{map[string]map[string]use{}, map[string]use{}, map[string][]int{}}
		for _, pod := range read.Pods {
			found.Pods[pod.Name] = map[string]use{}
		}
		if _, virtual := read.Node.Annotations[vgpu.VolcanoVGPURegister]; virtual {
			found.virtual(read)
		} else {
			found.shared(read)
		}
		if err := answers.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}

func (found answer) virtual(read world) {
	// A handshake that the plugin has just to answer, so that nothing is written on the node.
	read.Node.Annotations[vgpu.VolcanoVGPUHandshake] = "Requesting_" + time.Now().UTC().Format("2006.01.02 15:04:05")
	cards := vgpu.NewGPUDevices(read.Node.Name, &read.Node)
	if cards == nil {
		log.Fatal("Volcano sees no cards")
	}
	for at := range read.Pods {
		cards.AddResource(&read.Pods[at])
	}
	for _, card := range cards.Device {
		found.Totals[card.UUID] = use{card.UsedMem, card.UsedCore}
		for name, part := range card.PodMap {
			found.Pods[name][card.UUID] = use{part.UsedMem, part.UsedCore}
		}
	}
}

func (found answer) shared(read world) {
	cards := gpushare.NewGPUDevices(read.Node.Name, &read.Node)
	for at := range read.Pods {
		pod := &read.Pods[at]
		found.Index[pod.Name] = gpushare.GetGPUIndex(pod)
		if cards != nil {
			cards.AddResource(pod)
		}
	}
	if cards == nil {
		return
	}
	for _, card := range cards.Device {
		for _, pod := range card.PodMap {
			found.Pods[pod.Name]["card"+strconv.Itoa(card.ID)] = use{}
		}
	}
}
