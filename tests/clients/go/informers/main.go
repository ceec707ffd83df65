// Programs of users with client-go and controller-runtime: each argument is one flow, which fails
// with a message.
// usage: informers FLOW, with KUBECONFIG
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The timeout of an event on a loaded machine.
const patience = 60 * time.Second

const protobuf = "application/vnd.kubernetes.protobuf"

// wire records the requests and their content types.
type wire struct {
	sync.Mutex
	next  http.RoundTripper
	types map[string]int
	lists int
	paths []string
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(r)
	if err == nil {
		w.Lock()
		w.types[strings.SplitN(response.Header.Get("Content-Type"), ";", 2)[0]]++
		w.paths = append(w.paths, r.Method+" "+r.URL.RequestURI())
		if r.URL.Query().Get("sendInitialEvents") == "true" &&
			response.StatusCode == http.StatusOK {
			w.lists++
		}
		w.Unlock()
	}
	return response, err
}

// world is the input of every flow: a context that ends, clients, a separate namespace.
type world struct {
	context.Context
	config    *rest.Config
	client    *kubernetes.Clientset
	wire      *wire
	namespace string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL", err)
		os.Exit(1)
	}
}

func run() error {
	flows := map[string]func(*world) error{
		"informers": informersFlow, "dynamic": dynamicFlow, "apply": applyFlow,
		"events": eventsFlow, "election": electionFlow,
		"manager": managerFlow, "errors": errorsFlow,
		"discovery": discoveryFlow, "subresources": subresourcesFlow,
	}
	if len(os.Args) != 2 || flows[os.Args[1]] == nil {
		return fmt.Errorf(
			"name one flow of informers, dynamic, apply, events, election, manager, errors, " +
				"discovery, subresources",
		)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	seen := &wire{types: map[string]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { seen.next = next; return seen })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	namespace := "go-" + os.Args[1]
	if _, err := client.CoreV1().Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{},
	); err != nil {
		return fmt.Errorf("creating the namespace %s: %w", namespace, err)
	}
	return flows[os.Args[1]](&world{ctx, config, client, seen, namespace})
}

// await receives from the channel until want returns true.
func await[T any](what string, from <-chan T, want func(T) bool) error {
	deadline := time.After(patience)
	for {
		select {
		case got := <-from:
			if want(got) {
				return nil
			}
		case <-deadline:
			return fmt.Errorf("%s did not come within %s", what, patience)
		}
	}
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"made-by": "go"}},
		Data:       data,
	}
}
