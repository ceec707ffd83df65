// Command helm-templates renders templates with the engine of Helm 4.
//
//	go run . snippets < snippets.txt: one line of JSON per line of input: the template, and its
//	  output or error
//	go run . chart DIRECTORY INPUTS [VALUES]: renders a chart; writes what the engine is given and
//	  what it answers to the file INPUTS, for `cargo run -p go_template --example compare`
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	v2util "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

type recorded struct {
	Template string `json:"template"`
	Output   string `json:"output,omitempty"`
	Error    string `json:"error,omitempty"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func capabilities() *common.Capabilities {
	caps := common.DefaultCapabilities.Copy()
	kube, err := common.ParseKubeVersion("v1.37.1")
	must(err)
	caps.KubeVersion = *kube
	caps.HelmVersion.Version = "v4.3.1"
	return caps
}

func read(name string) []byte {
	data, err := os.ReadFile(name)
	must(err)
	return data
}

// snippet renders one template beside the definitions of helpers.tpl.
func snippet(text string) recorded {
	text = strings.ReplaceAll(text, "⏎", "\n")
	values := map[string]any{}
	must(yaml.Unmarshal(read("values.yaml"), &values))
	c := &v2.Chart{
		Metadata: &v2.Metadata{Name: "app", Version: "1.2.3", AppVersion: "4.5", APIVersion: "v2"},
		Templates: []*common.File{
			{Name: "templates/_helpers.tpl", Data: read("helpers.tpl")},
			{Name: "templates/t.yaml", Data: []byte(text)},
		},
		Files: []*common.File{
			{Name: "config/a.txt", Data: []byte("one\ntwo\n")},
			{Name: "config/b.json", Data: []byte(`{"k": [1, "x"]}`)},
			{Name: "bin.dat", Data: []byte{0, 255, 1}},
		},
	}
	top := map[string]any{
		"Values":       values,
		"Release":      map[string]any{"Name": "rel", "Namespace": "ns", "Revision": 1, "IsInstall": true, "Service": "Helm"},
		"Capabilities": capabilities(),
	}
	out, err := engine.Render(c, top)
	result := recorded{Template: text}
	if err != nil {
		result.Error = err.Error()
	} else {
		result.Output = out["app/templates/t.yaml"]
	}
	return result
}

func snippets() {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "### ") {
			must(out.Encode(snippet(line)))
		}
	}
	must(lines.Err())
}

type source struct {
	Name   string `json:"name"`
	Text   string `json:"text"`
	Chart  string `json:"chart"`
	Render bool   `json:"render"`
}

type root struct {
	Chart map[string]any    `json:"chart"`
	Files map[string][]byte `json:"files"`
	// The path of the chart's values below those of the first chart.
	Values []string `json:"values"`
	Parent string   `json:"parent"`
}

type inputs struct {
	Sources      []source          `json:"sources"`
	Roots        map[string]root   `json:"roots"`
	Values       any               `json:"values"`
	Release      any               `json:"release"`
	APIVersions  []string          `json:"apiVersions"`
	KubeVersion  string            `json:"kubeVersion"`
	Output       map[string]string `json:"output"`
	Error        string            `json:"error"`
}

func walk(c *v2.Chart, values []string, parent string, in *inputs) {
	accessor, err := chart.NewDefaultAccessor(c)
	must(err)
	metadata := accessor.MetadataAsMap()
	metadata["IsRoot"] = accessor.IsRoot()
	files := map[string][]byte{}
	for _, file := range accessor.Files() {
		files[file.Name] = file.Data
	}
	name := accessor.ChartFullPath()
	in.Roots[name] = root{Chart: metadata, Files: files, Values: values, Parent: parent}
	for _, child := range c.Dependencies() {
		walk(child, append(append([]string{}, values...), child.Name()), name, in)
	}
	for _, file := range c.Templates {
		partial := strings.HasPrefix(path.Base(file.Name), "_")
		if accessor.IsLibraryChart() && !partial {
			continue
		}
		in.Sources = append(in.Sources, source{
			Name: path.Join(name, file.Name), Text: string(file.Data), Chart: name, Render: !partial,
		})
	}
}

func renderChart(directory, target, valuesFile string) {
	c, err := loader.Load(directory)
	must(err)
	given := map[string]any{}
	if valuesFile != "" {
		must(yaml.Unmarshal(read(valuesFile), &given))
	}
	must(v2util.ProcessDependencies(c, given))
	options := common.ReleaseOptions{Name: "rel", Namespace: "ns", Revision: 1, IsInstall: true}
	values, err := commonutil.ToRenderValues(c, given, options, capabilities())
	must(err)
	in := inputs{
		Roots: map[string]root{}, Values: values["Values"], Release: values["Release"],
		APIVersions: capabilities().APIVersions, KubeVersion: "v1.37.1",
	}
	walk(c, nil, "", &in)
	data, err := json.Marshal(in.Values)
	must(err)
	in.Values = json.RawMessage(data)
	in.Output, err = engine.Render(c, values)
	if err != nil {
		in.Error = err.Error()
	}
	data, err = json.Marshal(in)
	must(err)
	must(os.WriteFile(target, data, 0o600))
}

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "snippets":
		snippets()
	case len(os.Args) >= 4 && os.Args[1] == "chart":
		renderChart(os.Args[2], os.Args[3], strings.Join(os.Args[4:], ""))
	default:
		fmt.Fprintln(os.Stderr, "usage: helm-templates snippets | chart DIRECTORY INPUTS [VALUES]")
		os.Exit(2)
	}
}
