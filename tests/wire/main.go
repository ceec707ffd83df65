// Records the results of upstream's codecs, strategic merge patch and field manager for generated
// objects of every kind.
//
// usage: go run . -seed N -variants N <schema.txt >recorded.jsonl
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strings"

	apiextscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/scheme"
)

// A recorded case: `In` is the input, `JSON` the result if it differs, `Proto` the result as
// protobuf, `Back` the object decoded from it if it differs.
type line struct {
	Kind   string `json:"kind"`
	Number int    `json:"number"`
	Op     string `json:"op"`
	In     string `json:"in,omitempty"`
	JSON   string `json:"json,omitempty"`
	Proto  []byte `json:"proto,omitempty"`
	Back   string `json:"back,omitempty"`
	Old    string `json:"old,omitempty"`
	Patch  string `json:"patch,omitempty"`
	Steps  []step `json:"steps,omitempty"`
	// The objects that the steps write, stored once.
	Objects []string `json:"objects,omitempty"`
	Error   string   `json:"error,omitempty"`
}

type step struct {
	Manager string `json:"manager"`
	Op      string `json:"op"`
	Force   bool   `json:"force,omitempty"`
	Of      int    `json:"of"`
	JSON    string `json:"json,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Kinds with a pod template; two are enough in a small recording.
var templates = map[string]bool{
	"DaemonSet": true, "ReplicaSet": true, "ReplicationController": true, "PodTemplate": true,
	"Job": true,
}

var (
	small = flag.Bool("small", false, "lists once, and fewer of the kinds around a pod template")
	types = runtime.NewScheme()
	plain *serializerjson.Serializer
	proto *protobuf.Serializer
	typed managedfields.TypeConverter
)

func main() {
	seed := flag.Int64("seed", 1, "of the generator")
	variants := flag.Int("variants", 3, "objects of each kind; the first one has every field")
	flag.Parse()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, apiextscheme.AddToScheme, aggregatorscheme.AddToScheme,
	} {
		if err := add(types); err != nil {
			panic(err)
		}
	}
	plain = serializerjson.NewSerializerWithOptions(
		serializerjson.DefaultMetaFactory, types, types,
		serializerjson.SerializerOptions{Strict: false},
	)
	proto = protobuf.NewSerializer(types, types)
	typed = applyconfigurations.NewTypeConverter(types)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	put := func(recorded line) {
		data, err := json.Marshal(recorded)
		if err != nil {
			panic(err)
		}
		out.Write(append(data, '\n'))
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		parts := strings.Split(in.Text(), "\t")
		if parts[0] != "K" {
			continue
		}
		gvk := schema.GroupVersionKind{Group: parts[1], Version: parts[2], Kind: parts[3]}
		if !types.Recognizes(gvk) || strings.HasSuffix(gvk.Kind, "Options") ||
			gvk.Kind == "WatchEvent" {
			continue
		}
		for number := 0; number < *variants &&
			!(*small && number > 0 && strings.HasSuffix(gvk.Kind, "List")); number++ {
			f := &filler{
				Rand: rand.New(
					rand.NewSource(
						*seed*1_000_003 + int64(number)*7919 + int64(hash(gvk.String())),
					),
				),
				full: number == 0,
			}
			record(gvk, number, f, put)
		}
	}
}

func hash(text string) (h uint32) {
	for _, b := range []byte(text) {
		h = h*31 + uint32(b)
	}
	return h
}

func made(gvk schema.GroupVersionKind, f *filler) runtime.Object {
	obj, err := types.New(gvk)
	if err != nil {
		panic(err)
	}
	f.fill(reflect.ValueOf(obj).Elem(), 0)
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

func text(obj runtime.Object) string {
	var out bytes.Buffer
	if err := plain.Encode(obj, &out); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func record(gvk schema.GroupVersionKind, number int, f *filler, put func(line)) {
	kind := gvk.GroupVersion().String() + "/" + gvk.Kind
	// The input: every field of the first object, some fields of the others.
	f.alike = true
	in := text(made(gvk, f))
	if number > 0 {
		data, _ := json.Marshal(f.blanked(decoded([]byte(in))))
		in = string(data)
	}
	read, _, err := plain.Decode([]byte(in), &gvk, nil)
	if err != nil {
		put(line{Kind: kind, Number: number, Op: "codec", In: in, Error: err.Error()})
		return
	}
	codec := line{Kind: kind, Number: number, Op: "codec", In: in}
	if json := text(read); json != in {
		codec.JSON = json
	}
	var packed bytes.Buffer
	if err := proto.Encode(read, &packed); err == nil {
		codec.Proto = packed.Bytes()
		again, _, err := proto.Decode(packed.Bytes(), &gvk, nil)
		if err != nil {
			panic(err)
		}
		again.GetObjectKind().SetGroupVersionKind(gvk)
		if back := text(again); back != text(read) {
			codec.Back = back
		}
	} else {
		codec.Error = err.Error()
	}
	put(codec)
	if strings.HasSuffix(kind, "List") || *small && templates[gvk.Kind] {
		return
	}
	f.alike = number == 2
	one, other := plainer(made(gvk, f)), plainer(made(gvk, f))
	if patch, err := strategicpatch.CreateTwoWayMergePatch(
		[]byte(text(one)), []byte(text(other)), one,
	); err == nil {
		recorded := line{
			Kind:   kind,
			Number: number,
			Op:     "strategic",
			Old:    text(one),
			Patch:  string(patch),
		}
		result, err := strategicpatch.StrategicMergePatch([]byte(text(one)), patch, one)
		if err != nil {
			recorded.Error = err.Error()
		} else {
			recorded.JSON = string(result)
		}
		put(recorded)
	}
	if _, err := meta.Accessor(read); err == nil {
		if recorded := applied(gvk, kind, number, f, one, other); !strings.Contains(
			recorded.Steps[0].Error, "no type found matching",
		) {
			put(recorded)
		}
	}
}

// plainer is the object as clients send it: its metadata without the server's fields.
func plainer(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		return obj
	}
	labels, annotations, finalizers := m.GetLabels(), m.GetAnnotations(), m.GetFinalizers()
	if of, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if filled, ok := of.GetObjectMeta().(*metav1.ObjectMeta); ok {
			*filled = metav1.ObjectMeta{
				Name:        "x",
				Namespace:   "y",
				Labels:      labels,
				Annotations: annotations,
				Finalizers:  finalizers,
			}
		}
	}
	return obj
}

func applied(
	gvk schema.GroupVersionKind, kind string, number int, f *filler, first, second runtime.Object,
) line {
	recorded := line{Kind: kind, Number: number, Op: "apply"}
	manager, err := managedfields.NewDefaultFieldManager(
		typed, types, types, types, gvk, gvk.GroupVersion(), "", nil,
	)
	if err != nil {
		panic(err)
	}
	live, _ := types.New(gvk)
	live.GetObjectKind().SetGroupVersionKind(gvk)
	recorded.Objects = []string{text(first), text(second), text(plainer(made(gvk, f)))}
	for _, one := range []step{
		{Manager: "m1", Op: "apply", Of: 0},
		{Manager: "m2", Op: "update", Of: 1},
		{Manager: "m1", Op: "apply", Of: 0},
		{Manager: "m3", Op: "apply", Force: true, Of: 2},
		{Manager: "m1", Op: "apply", Force: true, Of: 1},
	} {
		var result runtime.Object
		if one.Op == "apply" {
			config := &unstructured.Unstructured{}
			if err := config.UnmarshalJSON([]byte(recorded.Objects[one.Of])); err != nil {
				panic(err)
			}
			result, err = manager.Apply(live.DeepCopyObject(), config, one.Manager, one.Force)
		} else {
			updated, _, decodeErr := plain.Decode([]byte(recorded.Objects[one.Of]), &gvk, nil)
			if decodeErr != nil {
				panic(decodeErr)
			}
			was, _ := meta.Accessor(live)
			now, _ := meta.Accessor(updated)
			now.SetManagedFields(was.GetManagedFields())
			result, err = manager.Update(live.DeepCopyObject(), updated, one.Manager)
		}
		if err != nil {
			one.Error = err.Error()
		} else {
			result.GetObjectKind().SetGroupVersionKind(gvk)
			live = result
			one.JSON = text(withoutTimes(result))
		}
		recorded.Steps = append(recorded.Steps, one)
	}
	if len(recorded.Steps) == 0 {
		panic(fmt.Sprint("no steps for ", kind))
	}
	return recorded
}

func withoutTimes(obj runtime.Object) runtime.Object {
	obj = obj.DeepCopyObject()
	m, _ := meta.Accessor(obj)
	entries := m.GetManagedFields()
	for i := range entries {
		entries[i].Time = nil
	}
	m.SetManagedFields(entries)
	return obj
}
