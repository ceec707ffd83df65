// The official suite: every package that contains conformance specs, as one test binary.
package conformance

import (
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"k8s.io/kubernetes/test/conformance/testdata"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	"k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/fixtures"

	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"

	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/architecture"
	_ "k8s.io/kubernetes/test/e2e/auth"
	_ "k8s.io/kubernetes/test/e2e/autoscaling"
	_ "k8s.io/kubernetes/test/e2e/common"
	_ "k8s.io/kubernetes/test/e2e/dra"
	_ "k8s.io/kubernetes/test/e2e/instrumentation"
	_ "k8s.io/kubernetes/test/e2e/kubectl"
	_ "k8s.io/kubernetes/test/e2e/network"
	_ "k8s.io/kubernetes/test/e2e/node"
	_ "k8s.io/kubernetes/test/e2e/scheduling"
	_ "k8s.io/kubernetes/test/e2e/storage"
	_ "k8s.io/kubernetes/test/e2e/storage/csimock"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
)

// specLimit ends a spec that waits forever. Most specs take less than five minutes; those of
// autoscaling pass a longer limit, because they wait for several stabilization windows.
var specLimit = flag.Duration("spec-limit", 15*time.Minute, "limit of a spec without its own")

// limitSpec sets a time limit for a spec without one. Ginkgo can interrupt a body only if it takes
// a context.
func limitSpec(
	kind types.NodeType, _ ginkgo.Offset, text string, args []any,
) (string, []any, []error) {
	if kind != types.NodeTypeIt || !interruptible(args) {
		return text, args, nil
	}
	return text, append(args, ginkgo.NodeTimeout(*specLimit)), nil
}

// interruptible returns whether the body among a node's arguments takes a context and has no limit.
func interruptible(args []any) bool {
	body := false
	for _, arg := range args {
		switch arg := arg.(type) {
		case ginkgo.NodeTimeout, ginkgo.SpecTimeout:
			return false
		default:
			if kind := reflect.TypeOf(arg); kind != nil && kind.Kind() == reflect.Func &&
				kind.NumIn() == 1 {
				body = true
			}
		}
	}
	return body
}

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	// The specs read upstream's files from the binary.
	testfiles.AddFileSource(testing_manifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(fixtures.GetTestFixturesFS())
	testfiles.AddFileSource(testdata.GetConformanceTestdataFS())
	ginkgo.AddTreeConstructionNodeArgsTransformer(limitSpec)
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestE2E(t *testing.T) { e2e.RunE2ETests(t) }
