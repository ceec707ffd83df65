//go:build tools

// The commands that the suite needs, so that go.mod contains their dependencies.
package conformance

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e_node"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/resource-consumer"
	_ "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"
	_ "k8s.io/kubernetes/test/images/sample-device-plugin"
	_ "k8s.io/sample-apiserver"
	_ "k8s.io/system-validators/validators"
)
