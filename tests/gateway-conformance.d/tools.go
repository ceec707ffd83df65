//go:build tools

package gatewayconformance

import _ "sigs.k8s.io/gateway-api/conformance/echo-basic"
