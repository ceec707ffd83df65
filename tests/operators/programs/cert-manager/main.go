// Cert-manager's three programs in one, selected by the first argument. The modules of its `main`
// packages are not released, so this program assembles the same parts, from the module's packages,
// with the flags of its chart.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cert-manager/cert-manager/internal/webhook"
	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmechallenges"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmeorders"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/ingresses"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/acme"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/acme"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"
)

func main() {
	if len(os.Args) < 2 {
		fatal(fmt.Errorf("usage: cert-manager controller|webhook|cainjector FLAGS"))
	}
	ctrl.SetLogger(logf.Log)
	ctx := logf.NewContext(ctrl.SetupSignalHandler(), logf.Log, os.Args[1])
	flags := pflag.NewFlagSet(os.Args[1], pflag.ExitOnError)
	programs := map[string]func(context.Context, *pflag.FlagSet, []string) error{
		"controller": runController, "webhook": runWebhook, "cainjector": runInjector,
	}
	run, found := programs[os.Args[1]]
	if !found {
		fatal(fmt.Errorf("no program %q", os.Args[1]))
	}
	fatal(run(ctx, flags, os.Args[2:]))
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runWebhook(ctx context.Context, flags *pflag.FlagSet, arguments []string) error {
	config, err := options.NewWebhookConfiguration()
	if err != nil {
		return err
	}
	options.AddConfigFlags(flags, config)
	fatal(flags.Parse(arguments))
	server, err := webhook.NewCertManagerWebhookServer(logf.FromContext(ctx), *config)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func runInjector(ctx context.Context, flags *pflag.FlagSet, arguments []string) error {
	flags.Int("v", 0, "")
	election := flags.String("leader-election-namespace", "kube-system", "")
	fatal(flags.Parse(arguments))
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		cmapi.AddToScheme, corev1.AddToScheme, admissionv1.AddToScheme, apiextensions.AddToScheme,
		apiregistration.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	manager, err := ctrl.NewManager(util.RestConfigWithUserAgent(
		ctrl.GetConfigOrDie(), "cainjector",
	), ctrl.Options{
		Scheme:                     scheme,
		Cache:                      cache.Options{ReaderFailOnMissingInformer: true},
		LeaderElection:             true,
		LeaderElectionNamespace:    *election,
		LeaderElectionID:           "cert-manager-cainjector-leader-election",
		LeaderElectionResourceLock: resourcelock.LeasesResourceLock,
		Metrics:                    metricsserver.Options{BindAddress: "0"},
		Client: client.Options{
			Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}},
		},
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.APIServiceName:                     true, cainjector.CustomResourceDefinitionName: true,
		},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

func runController(ctx context.Context, flags *pflag.FlagSet, arguments []string) error {
	flags.Int("v", 0, "")
	flags.Int("max-concurrent-challenges", 60, "")
	flags.String("acme-http01-solver-image", "", "")
	election := flags.String("leader-election-namespace", "kube-system", "")
	namespace := flags.String("cluster-resource-namespace", "kube-system", "")
	fatal(flags.Parse(arguments))
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS: 20, KubernetesAPIBurst: 50,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: *namespace},
		IngressShimOptions: controller.IngressShimOptions{
			DefaultIssuerKind:                 "Issuer",
			DefaultIssuerGroup:                "cert-manager.io",
			DefaultAutoCertificateAnnotations: []string{"kubernetes.io/tls-acme"},
		},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes: []string{
				"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/",
			},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
		SchedulerOptions: controller.SchedulerOptions{MaxConcurrentChallenges: 60},
	})
	if err != nil {
		return err
	}
	go func() {
		mux := http.NewServeMux()
		mux.HandleFunc(
			"/livez",
			func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") },
		)
		fatal(http.ListenAndServe(":9403", mux))
	}()
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(
		resourcelock.LeasesResourceLock, *election, "cert-manager-controller", clients.CoreV1(),
		clients.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: name + "-external-cert-manager-controller"},
	)
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 15 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { fatal(lead(ctx, factory)) },
			OnStoppedLeading: func() {},
		},
	})
	return nil
}

func lead(ctx context.Context, factory *controller.ContextFactory) error {
	root, err := factory.Build()
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for name, construct := range controller.Known() {
		interfaces, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		running.Go(func() { fatal(interfaces.Run(5, ctx)) })
	}
	root.SharedInformerFactory.Start(ctx.Done())
	root.KubeSharedInformerFactory.Start(ctx.Done())
	root.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	running.Wait()
	return nil
}
