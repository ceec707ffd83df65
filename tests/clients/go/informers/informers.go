package main

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
)

type change struct{ verb, name, value string }

// informersFlow tests shared informers over protobuf: the initial state, every change, and a lister
// that agrees with the server.
func informersFlow(w *world) error {
	for i := range 7 {
		if _, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(
			w, configMap(fmt.Sprintf("before-%d", i), nil), metav1.CreateOptions{},
		); err != nil {
			return err
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(
		w.client,
		0,
		informers.WithNamespace(w.namespace),
		informers.WithTweakListOptions(
			func(o *metav1.ListOptions) { o.LabelSelector = "made-by=go" },
		),
	)
	maps := factory.Core().V1().ConfigMaps()
	pods := factory.Core().V1().Pods().Informer()
	sets := factory.Apps().V1().Deployments().Informer()
	changes := make(chan change, 100)
	if _, err := maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			m := o.(*corev1.ConfigMap)
			changes <- change{"add", m.Name, m.Data["k"]}
		},
		UpdateFunc: func(_, o any) {
			m := o.(*corev1.ConfigMap)
			changes <- change{"update", m.Name, m.Data["k"]}
		},
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			m := o.(*corev1.ConfigMap)
			changes <- change{"delete", m.Name, m.Data["k"]}
		},
	}); err != nil {
		return err
	}
	factory.Start(w.Done())
	if !cache.WaitForCacheSync(
		w.Done(), maps.Informer().HasSynced, pods.HasSynced, sets.HasSynced,
	) {
		return fmt.Errorf("the informers did not sync")
	}
	list, err := maps.Lister().ConfigMaps(w.namespace).List(labels.Everything())
	if err != nil || len(list) != 7 {
		return fmt.Errorf("the lister knows %d of 7 config maps (%v)", len(list), err)
	}
	made, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(
		w, configMap("live", map[string]string{"k": "0"}), metav1.CreateOptions{},
	)
	if err != nil {
		return err
	}
	for i := range 20 {
		made.Data["k"] = strconv.Itoa(i + 1)
		if made, err = w.client.CoreV1().ConfigMaps(w.namespace).Update(
			w, made, metav1.UpdateOptions{},
		); err != nil {
			return err
		}
	}
	if err := w.client.CoreV1().ConfigMaps(w.namespace).Delete(
		w, "live", metav1.DeleteOptions{},
	); err != nil {
		return err
	}
	next := -1
	var wrong error
	if err := await("the deletion of live", changes, func(c change) bool {
		if c.name != "live" {
			return false
		}
		if c.verb != "delete" {
			next++
			if c.value != strconv.Itoa(next) && wrong == nil {
				wrong = fmt.Errorf(
					"change %d of live came as %s of value %s", next, c.verb, c.value,
				)
			}
		}
		return c.verb == "delete"
	}); err != nil {
		return err
	}
	if wrong != nil || next != 20 {
		return fmt.Errorf("%d of 20 updates came in order (%w)", next, wrong)
	}
	// If an object no longer matches the selector, its watchers receive a deletion.
	if _, err := w.client.CoreV1().ConfigMaps(w.namespace).Update(
		w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "before-0"}},
		metav1.UpdateOptions{},
	); err != nil {
		return err
	}
	if err := await(
		"the deletion of before-0 from the selection",
		changes,
		func(c change) bool { return c.verb == "delete" && c.name == "before-0" },
	); err != nil {
		return err
	}
	// The server lists at the resource version of the informers' state.
	if _, err := w.client.CoreV1().ConfigMaps(w.namespace).List(
		w,
		metav1.ListOptions{
			ResourceVersion:      maps.Informer().LastSyncResourceVersion(),
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		},
	); err != nil {
		return fmt.Errorf("listing not older than the informer: %w", err)
	}
	seen := 0
	pages := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		return w.client.CoreV1().ConfigMaps(w.namespace).List(w, o)
	}))
	pages.PageSize = 2
	if err := pages.EachListItem(
		w,
		metav1.ListOptions{LabelSelector: "made-by=go"},
		func(runtime.Object) error { seen++; return nil },
	); err != nil || seen != 6 {
		return fmt.Errorf("pages of 2 held %d of 6 config maps (%v)", seen, err)
	}
	w.wire.Lock()
	defer w.wire.Unlock()
	if w.wire.types[protobuf] == 0 || w.wire.types["application/json"] != 0 {
		return fmt.Errorf("not everything was protobuf: %v", w.wire.types)
	}
	if w.wire.lists < 3 {
		return fmt.Errorf(
			"the informers did not get their first state by watching: %v", w.wire.paths,
		)
	}
	return nil
}

// dynamicFlow tests dynamic and metadata informers: objects without types, and only objects'
// metadata.
func dynamicFlow(w *world) error {
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		return err
	}
	heads, err := metadata.NewForConfig(w.config)
	if err != nil {
		return err
	}
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	changes, names := make(chan change, 100), make(chan change, 100)
	objects := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, w.namespace, nil)
	objectsInformer := objects.ForResource(resource).Informer()
	if _, err := objectsInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			changes <- change{"add", o.(*unstructured.Unstructured).GetName(), ""}
		},
		UpdateFunc: func(_, o any) {
			replicas, _, _ := unstructured.NestedInt64(
				o.(*unstructured.Unstructured).Object, "spec", "replicas",
			)
			changes <- change{
				"update", o.(*unstructured.Unstructured).GetName(), strconv.FormatInt(replicas, 10),
			}
		},
	}); err != nil {
		return err
	}
	parts := metadatainformer.NewFilteredSharedInformerFactory(heads, 0, w.namespace, nil)
	partsInformer := parts.ForResource(resource).Informer()
	if _, err := partsInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { names <- change{"add", o.(*metav1.PartialObjectMetadata).Name, ""} },
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			names <- change{"delete", o.(*metav1.PartialObjectMetadata).Name, ""}
		},
	}); err != nil {
		return err
	}
	objects.Start(w.Done())
	parts.Start(w.Done())
	objects.WaitForCacheSync(w.Done())
	parts.WaitForCacheSync(w.Done())
	deployment := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"replicas": int64(0), "selector": map[string]any{
			"matchLabels": map[string]any{"app": "web"},
		}, "template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "x"}}}}},
	}}
	web := client.Resource(resource).Namespace(w.namespace)
	if _, err := web.Create(w, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := await(
		"the new deployment",
		changes,
		func(c change) bool { return c.verb == "add" && c.name == "web" },
	); err != nil {
		return err
	}
	if err := await(
		"the new deployment's head",
		names,
		func(c change) bool { return c.verb == "add" && c.name == "web" },
	); err != nil {
		return err
	}
	if _, err := web.Patch(
		w, "web", "application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`),
		metav1.PatchOptions{},
	); err != nil {
		return err
	}
	if err := await(
		"two replicas",
		changes,
		func(c change) bool { return c.verb == "update" && c.value == "2" },
	); err != nil {
		return err
	}
	applied := deployment.DeepCopy()
	if _, err := web.Apply(
		w, "web", applied, metav1.ApplyOptions{FieldManager: "dynamic"},
	); !apierrors.IsConflict(err) {
		return fmt.Errorf("applying another manager's field gave %v instead of a conflict", err)
	}
	if _, err := web.Apply(
		w, "web", applied, metav1.ApplyOptions{FieldManager: "dynamic", Force: true},
	); err != nil {
		return err
	}
	if _, err := web.Create(
		w, deployment, metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{"All"}},
	); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a dry run of an existing name gave %v", err)
	}
	if err := web.Delete(w, "web", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return await(
		"the end of the deployment's head",
		names,
		func(c change) bool { return c.verb == "delete" && c.name == "web" },
	)
}
