// A cloud in memory, and a cloud-controller-manager for it, for the checks of external clouds.
//
//	cloud-controller-manager cloud ADDRESS:PORT
//	cloud-controller-manager --cloud-provider=memory --cloud-config=FILE FLAG...
//
// The first form is the cloud (cloud.go). The second form is upstream's manager with a provider
// that requests everything from the cloud whose URL is the content of FILE.
package main

import (
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "cloud" {
		klog.Fatal(serveCloud(os.Args[2]))
	}
	cloudprovider.RegisterCloudProvider(providerName, newProvider)
	managerOptions, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatal(err)
	}
	command := app.NewCloudControllerManagerCommand(managerOptions, start,
		app.DefaultInitFuncConstructors, names.CCMControllerAliases(), cliflag.NamedFlagSets{},
		wait.NeverStop)
	os.Exit(cli.Run(command))
}

func start(completed *config.CompletedConfig) cloudprovider.Interface {
	settings := completed.ComponentConfig.KubeCloudShared.CloudProvider
	cloud, err := cloudprovider.InitCloudProvider(settings.Name, settings.CloudConfigFile)
	if err != nil {
		klog.Fatal(err)
	}
	if cloud == nil {
		klog.Fatal("--cloud-provider is missing")
	}
	return cloud
}
