// Command record evaluates CEL expressions as Kubernetes 1.37 does and prints each result as a line
// of JSON.
//
//	go run . declarations: the functions, for src/kcel/declarations.txt
//	go run . < expressions.txt: the results
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type recorded struct {
	Expr  string `json:"expr"`
	Fault string `json:"fault,omitempty"` // of parser or checker
	Type  string `json:"type,omitempty"`
	Min   string `json:"min,omitempty"`
	Max   string `json:"max,omitempty"`
	Value string `json:"value,omitempty"`
	Error string `json:"error,omitempty"` // at run time
	Cost  string `json:"cost,omitempty"`
}

const selfSchema = `{
 "type": "object",
 "properties": {
  "name": {"type": "string", "maxLength": 63},
  "text": {"type": "string"},
  "count": {"type": "integer"},
  "ratio": {"type": "number"},
  "flag": {"type": "boolean"},
  "port": {"x-kubernetes-int-or-string": true},
  "when": {"type": "string", "format": "date-time"},
  "day": {"type": "string", "format": "date"},
  "wait": {"type": "string", "format": "duration"},
  "raw": {"type": "string", "format": "byte"},
  "maybe": {"type": "string", "nullable": true},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 10},
  "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
  "ports": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}},
  "labels": {"type": "object", "maxProperties": 8, "additionalProperties": {"type": "string", "maxLength": 30}},
  "nested": {"type": "object", "properties": {"a": {"type": "string"}, "in": {"type": "string"}, "x-y": {"type": "string"}, "namespace": {"type": "string"}}},
  "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "string"}}}
 }
}`

const selfValue = `{
  "name": "web", "text": "hello world", "count": 3, "ratio": 1.5, "flag": true, "port": "http", "when": "2024-02-29T12:30:45.5Z", "day": "2024-02-29", "wait": "1h30m",
  "raw": "aGVsbG8=", "maybe": null, "tags": ["a", "b", "c"], "set": ["x", "y", "z"],
  "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}],
  "labels": {"app": "web", "tier": "front", "a.b/c": "d"}, "nested": {"a": "A", "in": "IN", "x-y": "XY", "namespace": "NS"}, "free": {"known": "k", "other": 1}
}`

const otherValue = `{"name": "web", "count": 4, "ratio": 2, "port": 80, "tags": ["a"], "set": ["z", "y", "x"], "ports": [{"name": "https", "port": 443}, {"name": "http", "port": 80}], "labels": {}, "nested": {"a": "B"}}`

const dynValue = `{"s": "text", "n": 7, "f": 2.5, "b": false, "z": null, "l": [1, 2.5, "x", true, null], "m": {"k": "v", "deep": {"er": [1, 2]}}}`

type sizes struct{}

func (sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	switch strings.Join(element.Path(), ".") {
	case "s":
		return &checker.SizeEstimate{Min: 0, Max: 100}
	case "ls", "li", "mss", "msi":
		return &checker.SizeEstimate{Min: 0, Max: 10}
	case "ls.@items", "mss.@values":
		return &checker.SizeEstimate{Min: 0, Max: 20}
	case "mss.@keys", "msi.@keys":
		return &checker.SizeEstimate{Min: 0, Max: 5}
	}
	return nil
}

func (sizes) EstimateCallCost(
	function, overloadID string, target *checker.AstNode, args []checker.AstNode,
) *checker.CallEstimate {
	return nil
}

type answers struct{}

func (answers) Authorize(
	_ context.Context, a authorizer.Attributes,
) (authorizer.Decision, string, error) {
	switch a.GetVerb() {
	case "get":
		reason := "allowed to get " + a.GetResource() + " in " + a.GetNamespace() + a.GetPath()
		return authorizer.DecisionAllow, reason, nil
	case "fail":
		return authorizer.DecisionNoOpinion, "", errors.New("the authorizer failed")
	}
	return authorizer.DecisionDeny, "", nil
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func environmentOf() (*cel.Env, *openapi.Schema) {
	var schema spec.Schema
	if err := json.Unmarshal([]byte(selfSchema), &schema); err != nil {
		panic(err)
	}
	wrapped := &openapi.Schema{Schema: &schema}
	self := openapi.SchemaDeclType(&schema, false).MaybeAssignTypeName("Self")
	set := must(environment.MustBaseEnvSet(
		version.MajorMinor(1, 37),
	).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("i", cel.IntType), cel.Variable("u", cel.UintType), cel.Variable(
				"f", cel.DoubleType,
			),
			cel.Variable("b", cel.BoolType), cel.Variable("s", cel.StringType), cel.Variable(
				"by", cel.BytesType,
			),
			cel.Variable(
				"ls", cel.ListType(cel.StringType),
			), cel.Variable("li", cel.ListType(cel.IntType)),
			cel.Variable("ld", cel.ListType(cel.DynType)),
			cel.Variable(
				"mss", cel.MapType(cel.StringType, cel.StringType),
			), cel.Variable("msi", cel.MapType(cel.StringType, cel.IntType)),
			cel.Variable("d", cel.DynType), cel.Variable(
				"ts", cel.TimestampType,
			), cel.Variable("du", cel.DurationType),
			cel.Variable(
				"os", cel.OptionalType(cel.StringType),
			), cel.Variable("ns.name", cel.StringType),
			cel.Variable("missing", cel.StringType),
			cel.Variable("self", self.CelType()), cel.Variable("other", self.CelType()),
			cel.Variable("authorizer", library.AuthorizerType),
		},
		DeclTypes: []*apiservercel.DeclType{self},
	}))
	// The types of a mutating policy: Object, JSONPatch.
	set = must(set.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{library.JSONPatch()},
	}))
	set = must(set.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			common.ResolverEnvOption(&mutation.DynamicTypeResolver{}),
		},
	}))
	return set.NewExpressionsEnv(), wrapped
}

func parsed(text string) any {
	var value any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err)
	}
	return numbers(value)
}

func numbers(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		return must(v.Float64())
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return value
}

func show(value ref.Val) string {
	switch v := value.(type) {
	case types.Null:
		return "null"
	case types.Bool:
		return fmt.Sprint(bool(v))
	case types.Int:
		return fmt.Sprint(int64(v))
	case types.Uint:
		return fmt.Sprint(uint64(v)) + "u"
	case types.Double:
		return fmt.Sprintf("%.17e", float64(v))
	case types.String:
		return string(must(json.Marshal(string(v))))
	case types.Bytes:
		return fmt.Sprintf("b%x", []byte(v))
	case types.Timestamp:
		return "timestamp(" + v.UTC().Format("2006-01-02T15:04:05.000000000Z") + ")"
	case types.Duration:
		return fmt.Sprintf("duration(%d)", v.Nanoseconds())
	case *types.Optional:
		if !v.HasValue() {
			return "none"
		}
		return "some(" + show(v.GetValue()) + ")"
	case *types.Type:
		return "type(" + v.TypeName() + ")"
	case *types.Err:
		return "error(" + v.Error() + ")"
	case traits.Lister:
		var parts []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			parts = append(parts, show(it.Next()))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case traits.Mapper:
		var parts []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			parts = append(parts, show(key)+": "+show(v.Get(key)))
		}
		sort.Strings(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if s, ok := value.Value().(fmt.Stringer); ok {
		return value.Type().TypeName() + "(" + s.String() + ")"
	}
	return value.Type().TypeName()
}

func record(env *cel.Env, activation map[string]any, expr string) (out recorded) {
	out.Expr = expr
	ast, issues := env.Compile(expr)
	if issues.Err() != nil {
		out.Fault = issues.Err().Error()
		return out
	}
	out.Type = checker.FormatCELType(ast.OutputType())
	estimate, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: sizes{}})
	if err != nil {
		panic(err)
	}
	out.Min, out.Max = fmt.Sprint(estimate.Min), fmt.Sprint(estimate.Max)
	program, err := env.Program(ast)
	if err != nil {
		out.Error = "program: " + err.Error()
		return out
	}
	value, details, err := program.Eval(activation)
	if details != nil && details.ActualCost() != nil {
		out.Cost = fmt.Sprint(*details.ActualCost())
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Value = show(value)
	return out
}

func declarations(env *cel.Env) {
	var names []string
	for name := range env.Functions() {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, overload := range env.Functions()[name].OverloadDecls() {
			var args []string
			for _, arg := range overload.ArgTypes() {
				args = append(args, checker.FormatCELType(arg))
			}
			style := "call"
			if overload.IsMemberFunction() {
				style = "member"
			}
			fmt.Printf(
				"%s %s %s %s | %s\n", name, overload.ID(), style, strings.Join(args, " ; "),
				checker.FormatCELType(overload.ResultType()),
			)
		}
	}
}

func main() {
	env, schema := environmentOf()
	if len(os.Args) > 1 && os.Args[1] == "declarations" {
		declarations(env)
		return
	}
	activation := map[string]any{
		"i": int64(5), "u": uint64(7), "f": 2.5, "b": true, "s": "hello", "by": []byte("bytes"),
		"ls": []string{"a", "b", "c"}, "li": []int64{3, 1, 2}, "ld": []any{int64(1), 1.0, "1"},
		"mss": map[string]string{"a": "1", "b": "2"}, "msi": map[string]int64{"x": 1, "y": 2},
		"d": parsed(dynValue), "ts": must(
			types.String(
				"2023-05-06T07:08:09.123Z",
			).ConvertToType(types.TimestampType).(types.Timestamp),
			nil,
		),
		"du": must(types.String("90m1s").ConvertToType(types.DurationType).(types.Duration), nil),
		"os": types.OptionalOf(types.String("some")), "ns.name": "qualified",
		"self": common.UnstructuredToVal(
			parsed(selfValue), schema,
		), "other": common.UnstructuredToVal(parsed(otherValue), schema),
		"authorizer": library.NewAuthorizerVal(&user.DefaultInfo{Name: "alice"}, answers{}),
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		// An expression of several lines is a JSON string.
		expr := line
		if strings.HasPrefix(line, "json:") {
			if err := json.Unmarshal([]byte(line[5:]), &expr); err != nil {
				panic(err)
			}
		}
		if err := out.Encode(record(env, activation, expr)); err != nil {
			panic(err)
		}
	}
}
