package main

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"time"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Values of generated objects. Few words, so that the recording compresses well and list elements
// collide.
var (
	words = []string{
		"a", "b", "c", "web", "example.com/x", "", "é<&>\"\\", "line\nline", "10.0.0.1",
	}
	quantities = []string{
		"0", "1", "100m", "1Gi", "1.5Gi", "1e3", "-5", "0.5", "12345678901234567890", "1000000Ki",
		"0.0001", "10n",
	}
	numbers = []int64{0, 1, -1, 2, 3, 80, 2147483647, -2147483648}
	raws    = []string{
		`{"a":1}`, `{"apiVersion":"v1","b":[1,"x",null,1.5],"kind":"X"}`,
		`{"f:a":{".":{},"f:b":{}}}`,
	}
)

type filler struct {
	*rand.Rand
	// Every field is set to a value other than zero.
	full bool
	// Elements of a list may be equal.
	alike bool
}

// distinguish sets a unique key in the element of a list.
func (f *filler) distinguish(v reflect.Value, index int) {
	if v.Kind() == reflect.String {
		v.SetString([]string{"a", "b", "c", "d"}[index])
	}
	if v.Kind() != reflect.Struct {
		return
	}
	for _, name := range []string{
		"Name", "Type", "Key", "IP", "UID", "MountPath", "DevicePath", "TopologyKey",
		"ResourceName", "Driver", "Device", "UUID", "Request", "ConditionType", "ContainerPort",
		"Port",
	} {
		field := v.FieldByName(name)
		switch {
		case !field.IsValid():
		case field.Kind() == reflect.String:
			field.SetString([]string{"a", "b", "c", "d"}[index])
		case field.Kind() == reflect.Int32:
			field.SetInt(int64(80 + index))
		}
	}
}

func (f *filler) word() string {
	if f.full {
		return words[f.Intn(5)]
	}
	return words[f.Intn(len(words))]
}

func (f *filler) number(bits int) int64 {
	if f.full {
		return int64(1 + f.Intn(100))
	}
	if bits == 64 && f.Intn(8) == 0 {
		return 9223372036854775807
	}
	return numbers[f.Intn(len(numbers))]
}

func (f *filler) count() int {
	if f.full {
		return 1 + f.Intn(2)
	}
	return f.Intn(4)
}

// skipped returns whether to omit an optional field.
func (f *filler) skipped(depth int) bool {
	return !f.full && f.Intn(10) < 3+depth/3
}

func (f *filler) fill(v reflect.Value, depth int) {
	switch made := v.Addr().Interface().(type) {
	case *metav1.TypeMeta:
		return
	case *metav1.Time:
		if !f.skipped(depth) {
			made.Time = time.Unix(f.Int63n(4_000_000_000), 0).UTC()
		}
		return
	case *metav1.MicroTime:
		if !f.skipped(depth) {
			made.Time = time.Unix(f.Int63n(4_000_000_000), f.Int63n(1_000_000)*1000).UTC()
		}
		return
	case *metav1.Duration:
		made.Duration = time.Duration(f.Int63n(1_000_000_000_000))
		return
	case *resource.Quantity:
		*made = resource.MustParse(quantities[f.Intn(len(quantities))])
		return
	case *intstr.IntOrString:
		*made = intstr.FromInt32(int32(f.number(32)))
		if f.Intn(2) == 0 {
			*made = intstr.FromString([]string{"25%", "http", ""}[f.Intn(3)])
		}
		return
	case *runtime.RawExtension:
		made.Raw = []byte(raws[f.Intn(len(raws))])
		return
	case *metav1.FieldsV1:
		made.Raw = []byte(raws[2])
		return
	case *apiext.JSON:
		made.Raw = []byte([]string{`{"a":1}`, `"x"`, `1`, `true`, `[1,"a"]`}[f.Intn(5)])
		return
	case *apiext.JSONSchemaPropsOrArray:
		if f.Intn(2) == 0 {
			made.Schema = f.schema(depth)
		} else {
			made.JSONSchemas = []apiext.JSONSchemaProps{*f.schema(depth), *f.schema(depth)}
		}
		return
	case *apiext.JSONSchemaPropsOrBool:
		if made.Allows = f.Intn(2) == 0; made.Allows && f.Intn(2) == 0 {
			made.Schema = f.schema(depth)
		}
		return
	case *apiext.JSONSchemaPropsOrStringArray:
		if f.Intn(2) == 0 {
			made.Schema = f.schema(depth)
		} else {
			made.Property = []string{"a", "b"}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := 0; i < v.NumField(); i++ {
			if field := v.Type().Field(i); field.IsExported() &&
				(field.Anonymous || !f.skipped(depth)) {
				f.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Pointer:
		// Recursive types end at a fixed depth.
		if depth > 14 || v.Type().Elem() == reflect.TypeFor[apiext.JSONSchemaProps]() && depth > 8 {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			bytes := make([]byte, f.count()*3)
			f.Read(bytes)
			v.SetBytes(bytes)
			return
		}
		if depth > 14 || v.Type().Elem() == reflect.TypeFor[apiext.JSONSchemaProps]() && depth > 8 {
			return
		}
		n := f.count()
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := 0; i < n; i++ {
			f.fill(v.Index(i), depth+1)
			if !f.alike {
				f.distinguish(v.Index(i), i)
			}
		}
	case reflect.Map:
		if depth > 14 || v.Type().Elem() == reflect.TypeFor[apiext.JSONSchemaProps]() && depth > 8 {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for i := f.count(); i > 0; i-- {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key, depth+1)
			f.fill(value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(f.word())
	case reflect.Bool:
		v.SetBool(f.full || f.Intn(2) == 0)
	case reflect.Int32:
		v.SetInt(f.number(32))
	case reflect.Int, reflect.Int64:
		v.SetInt(f.number(64))
	case reflect.Float64:
		v.SetFloat([]float64{1.5, 2, 0.1, 1e21, -3}[f.Intn(5)])
	}
}

func (f *filler) schema(depth int) *apiext.JSONSchemaProps {
	made := &apiext.JSONSchemaProps{Type: "string", Description: f.word()}
	if depth < 6 && f.Intn(2) == 0 {
		f.fill(reflect.ValueOf(made).Elem(), depth+4)
	}
	return made
}

// blanked is the JSON with null or nothing in some places, as clients send it and Go drops or fills
// it.
func (f *filler) blanked(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			switch {
			case key == "apiVersion" || key == "kind":
			case f.Intn(14) == 0:
				v[key] = nil
			default:
				v[key] = f.blanked(inner)
			}
		}
	case []any:
		if f.Intn(10) == 0 {
			return []any{}
		}
		for i, inner := range v {
			v[i] = f.blanked(inner)
		}
	}
	return value
}

func decoded(data []byte) any {
	var value any
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	if err := numbers.Decode(&value); err != nil {
		panic(err)
	}
	return value
}
