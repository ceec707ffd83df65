package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// An instance is a machine that the cloud rents out.
type instance struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Zone      string            `json:"zone"`
	Region    string            `json:"region"`
	Stopped   bool              `json:"stopped"`
	Addresses []address         `json:"addresses"`
	Labels    map[string]string `json:"labels"`
}

type address struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// A balancer forwards its ports to node ports. The cloud chooses its address.
type balancer struct {
	Service string         `json:"service"`
	Address string         `json:"address"`
	Nodes   []string       `json:"nodes"`
	Ports   map[string]int `json:"ports"`
	// How often the manager has set the nodes of this balancer.
	Updates int `json:"updates"`
}

type route struct {
	Node string `json:"node"`
	CIDR string `json:"cidr"`
}

// All that exists in the cloud, by its name.
type inventory struct {
	Instances map[string]instance `json:"instances"`
	Balancers map[string]balancer `json:"balancers"`
	Routes    map[string]route    `json:"routes"`
	// Addresses that balancers have got so far.
	Assigned int `json:"assigned"`
	// What the manager has requested, except for reads.
	Calls []string `json:"calls"`
}

// serveCloud answers GET / with the inventory; PUT and DELETE /KIND/NAME change an object of it.
func serveCloud(at string) error {
	cloud := inventory{map[string]instance{}, map[string]balancer{}, map[string]route{}, 0, []string{}}
	var lock sync.Mutex
	// Not the default one: libraries of the manager have their own pages there.
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		_ = json.NewEncoder(w).Encode(cloud)
	})
	change := func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		var err error
		name := r.PathValue("name")
		switch kind := r.PathValue("kind"); kind {
		case "instances":
			err = put(r, cloud.Instances, name)
		case "routes":
			err = put(r, cloud.Routes, name)
		case "balancers":
			previous, exists := cloud.Balancers[name]
			if err = put(r, cloud.Balancers, name); err != nil || r.Method == http.MethodDelete {
				break
			}
			if !exists {
				cloud.Assigned++
				previous.Address = fmt.Sprintf("203.0.113.%d", 80+cloud.Assigned)
			}
			next := cloud.Balancers[name]
			next.Address, next.Updates = previous.Address, previous.Updates+1
			cloud.Balancers[name] = next
			_ = json.NewEncoder(w).Encode(next)
		default:
			err = fmt.Errorf("no kind %q", kind)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		cloud.Calls = append(cloud.Calls, r.Method+" "+r.URL.Path)
	}
	mux.HandleFunc("PUT /{kind}/{name}", change)
	mux.HandleFunc("DELETE /{kind}/{name}", change)
	return http.ListenAndServe(at, mux)
}

func put[T any](r *http.Request, objects map[string]T, name string) error {
	if r.Method == http.MethodDelete {
		delete(objects, name)
		return nil
	}
	var object T
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		return err
	}
	objects[name] = object
	return nil
}
