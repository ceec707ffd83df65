package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
)

// The ResourceClaims that the scheduler has written, with what the API server and the drivers add:
// names, UIDs, versions, and devices that are ready at once.
type claims struct {
	mutex   sync.Mutex
	manager fwk.SharedDRAManager
	// The newest version by namespace and name; empty if the claim was deleted.
	written map[string]string
	created int
}

func claimKey(claim *resourceapi.ResourceClaim) string {
	return claim.Namespace + "/" + claim.Name
}

// Follows the writes of claims.
func watchClaims(client *fake.Clientset) *claims {
	c := &claims{written: map[string]string{}}
	client.PrependReactor("*", "resourceclaims",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			switch action := action.(type) {
			case clienttesting.CreateActionImpl:
				claim := action.Object.(*resourceapi.ResourceClaim)
				c.created++
				claim.Name = fmt.Sprintf("%s%d", claim.GenerateName, c.created)
				claim.UID = types.UID("uid-" + claim.Name)
				claim.ResourceVersion = "1"
				c.written[claimKey(claim)] = claim.ResourceVersion
			case clienttesting.UpdateActionImpl:
				claim := action.Object.(*resourceapi.ResourceClaim)
				// The plugin looks only once a second for a claim that it has created.
				must(c.wait(func() bool { return c.version(claimKey(claim)) != "" }))
				version, err := strconv.Atoi(c.written[claimKey(claim)])
				must(err)
				claim.ResourceVersion = strconv.Itoa(version + 1)
				c.written[claimKey(claim)] = claim.ResourceVersion
				prepare(claim)
			case clienttesting.DeleteActionImpl:
				c.written[action.Namespace+"/"+action.Name] = ""
			}
			return false, nil, nil
		})
	return c
}

// Makes the binding conditions of the claim's devices true, as their driver does.
func prepare(claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	claim.Status.Devices = nil
	for _, result := range claim.Status.Allocation.Devices.Results {
		if len(result.BindingConditions) == 0 {
			continue
		}
		device := resourceapi.AllocatedDeviceStatus{
			Driver: result.Driver, Pool: result.Pool, Device: result.Device,
		}
		for _, condition := range result.BindingConditions {
			device.Conditions = append(device.Conditions, metav1.Condition{
				Type: condition, Status: metav1.ConditionTrue, Reason: "Ready",
			})
		}
		claim.Status.Devices = append(claim.Status.Devices, device)
	}
}

// The version that the scheduler knows; empty if it knows none.
func (c *claims) version(key string) string {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	must(err)
	claim, err := c.manager.ResourceClaims().Get(namespace, name)
	if err != nil {
		return ""
	}
	return claim.ResourceVersion
}

// Whether the scheduler knows the newest version of all claims.
func (c *claims) settled() bool {
	for key, version := range c.written {
		if c.version(key) != version {
			return false
		}
	}
	return true
}

func (c *claims) wait(until func() bool) error {
	return wait.PollUntilContextTimeout(context.Background(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return until(), nil })
}

// Waits until the scheduler knows what was written.
func (c *claims) settle() { must(c.wait(c.settled)) }
