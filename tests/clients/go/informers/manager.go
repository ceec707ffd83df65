package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"
)

type runtimeObject = runtime.Object

const finalizer = "example.com/go-test"

// operator maintains a Secret for every ConfigMap with its label, as operators do: owner,
// finalizer, cached reads.
type operator struct {
	client.Client
	done chan string
}

func (o *operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	owner := &corev1.ConfigMap{}
	if err := o.Get(ctx, request.NamespacedName, owner); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if owner.Labels["made-by"] != "go" {
		return ctrl.Result{}, nil
	}
	if !owner.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(owner, finalizer) {
			if err := o.Update(ctx, owner); err != nil {
				return ctrl.Result{}, client.IgnoreNotFound(err)
			}
			o.done <- "finalized " + owner.Name
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(owner, finalizer) {
		return ctrl.Result{}, o.Update(ctx, owner)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: owner.Name, Namespace: owner.Namespace},
	}
	result, err := controllerutil.CreateOrUpdate(ctx, o.Client, secret, func() error {
		secret.Data = map[string][]byte{"colour": []byte(owner.Data["colour"])}
		return controllerutil.SetControllerReference(owner, secret, o.Scheme())
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 50 * time.Millisecond}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if result != controllerutil.OperationResultNone {
		o.done <- string(result) + " " + owner.Data["colour"]
	}
	return ctrl.Result{}, nil
}

// managerFlow tests a complete operator: manager with leader election, cache with an index,
// controller with owned objects.
func managerFlow(w *world) error {
	log.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(w.config, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{w.namespace: {}},
		},
		LeaderElection: true, LeaderElectionID: "operator", LeaderElectionNamespace: w.namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if err := manager.GetFieldIndexer().IndexField(
		w,
		&corev1.Secret{},
		"colour",
		func(o client.Object) []string {
			return []string{string(o.(*corev1.Secret).Data["colour"])}
		},
	); err != nil {
		return err
	}
	keeper := &operator{manager.GetClient(), make(chan string, 100)}
	if err := ctrl.NewControllerManagedBy(manager).For(
		&corev1.ConfigMap{},
	).Owns(&corev1.Secret{}).Complete(keeper); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(w)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	direct, err := client.New(w.config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		stop()
		return err
	}
	failed := func() error {
		owner := configMap("owner", map[string]string{"colour": "red"})
		owner.Namespace = w.namespace
		if err := direct.Create(w, owner); err != nil {
			return err
		}
		if err := await(
			"the secret",
			keeper.done,
			func(s string) bool { return s == "created red" },
		); err != nil {
			return err
		}
		patch := client.MergeFrom(owner.DeepCopy())
		owner.Data["colour"] = "blue"
		if err := direct.Patch(w, owner, patch); err != nil {
			return err
		}
		if err := await(
			"the new colour",
			keeper.done,
			func(s string) bool { return s == "updated blue" },
		); err != nil {
			return err
		}
		// The operator restores an owned object after its deletion.
		if err := direct.Delete(
			w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: w.namespace}},
		); err != nil {
			return err
		}
		if err := await(
			"the secret again",
			keeper.done,
			func(s string) bool { return s == "created blue" },
		); err != nil {
			return err
		}
		secret := &corev1.Secret{}
		if err := direct.Get(w, client.ObjectKeyFromObject(owner), secret); err != nil ||
			!metav1.IsControlledBy(secret, owner) {
			return fmt.Errorf(
				"the secret is not controlled by its owner: %v (%v)", secret.OwnerReferences, err,
			)
		}
		if err := direct.Delete(
			w, owner, client.PropagationPolicy(metav1.DeletePropagationBackground),
		); err != nil {
			return err
		}
		if err := await(
			"the finalizer's work",
			keeper.done,
			func(s string) bool { return s == "finalized owner" },
		); err != nil {
			return err
		}
		// The garbage collector deletes the secret; the cache receives the event.
		gone := time.Now().Add(patience)
		for {
			secrets := &corev1.SecretList{}
			if err := manager.GetClient().List(
				w, secrets, client.InNamespace(w.namespace),
				client.MatchingFields{"colour": "blue"},
			); err != nil {
				return err
			}
			if len(secrets.Items) == 0 {
				return nil
			}
			if time.Now().After(gone) {
				return fmt.Errorf("the owned secret is still there %s after its owner", patience)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	stop()
	if err := <-ended; err != nil && failed == nil {
		return fmt.Errorf("the manager ended with %w", err)
	}
	return failed
}
