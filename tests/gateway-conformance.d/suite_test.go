// Gateway API's own suite; tests/gateway-conformance builds and runs it.
package gatewayconformance

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }
