// Command controllers prints the controllers of kube-controller-manager, one in each line, sorted:
// name, aliases, whether `--controllers=*` starts it, and its feature gates with their defaults.
// An empty list is `-`.
//
// tests/controllers/record writes its output to src/controllers/upstream.txt.
package main

import (
	"fmt"
	"sort"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func list(items []string) string {
	if len(items) == 0 {
		return "-"
	}
	sort.Strings(items)
	return strings.Join(items, ",")
}

func main() {
	descriptors := app.NewControllerDescriptors()
	for _, name := range app.KnownControllers() {
		descriptor := descriptors[name]
		state := "on"
		if descriptor.IsDisabledByDefault() {
			state = "off"
		}
		var gates []string
		for _, gate := range descriptor.GetRequiredFeatureGates() {
			gates = append(gates, fmt.Sprintf("%s=%t", gate, utilfeature.DefaultFeatureGate.Enabled(gate)))
		}
		fmt.Println(name, list(descriptor.GetAliases()), state, list(gates))
	}
}
