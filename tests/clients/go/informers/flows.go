package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"
)

func deployment(name string, replicas int32) *appsapply.DeploymentApplyConfiguration {
	labels := map[string]string{"app": name}
	return appsapply.Deployment(name, "").WithSpec(appsapply.DeploymentSpec().WithReplicas(replicas).
		WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(
			coreapply.PodSpec().WithContainers(
				coreapply.Container().WithName("c").WithImage("x").WithPorts(
					coreapply.ContainerPort().WithContainerPort(80))))))
}

// applyFlow tests typed server-side apply: ownership, conflict with its cause, force, extract and
// reapply, status.
func applyFlow(w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	one := coreapply.ConfigMap("shared", w.namespace).WithData(
		map[string]string{"a": "1", "b": "1"},
	)
	if _, err := maps.Apply(w, one, metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		return err
	}
	two := coreapply.ConfigMap("shared", w.namespace).WithData(
		map[string]string{"b": "2", "c": "2"},
	)
	_, err := maps.Apply(w, two, metav1.ApplyOptions{FieldManager: "two"})
	var status *apierrors.StatusError
	if !apierrors.IsConflict(err) || !errors.As(err, &status) ||
		len(status.ErrStatus.Details.Causes) != 1 ||
		status.ErrStatus.Details.Causes[0].Field != ".data.b" {
		return fmt.Errorf(
			"applying another manager's field gave %v instead of a conflict on .data.b", err,
		)
	}
	got, err := maps.Apply(w, two, metav1.ApplyOptions{FieldManager: "two", Force: true})
	if err != nil || got.Data["a"] != "1" || got.Data["b"] != "2" || got.Data["c"] != "2" {
		return fmt.Errorf("forcing left %v (%v)", got.Data, err)
	}
	// A field without an owner is removed when its last manager no longer applies it.
	got, err = maps.Apply(
		w, coreapply.ConfigMap("shared", w.namespace), metav1.ApplyOptions{FieldManager: "one"},
	)
	if err != nil || len(got.Data) != 2 || got.Data["a"] != "" {
		return fmt.Errorf("releasing fields left %v (%v)", got.Data, err)
	}
	mine, err := coreapply.ExtractConfigMap(got, "two")
	if err != nil || len(mine.Data) != 2 {
		return fmt.Errorf("extracting two's fields gave %v (%v)", mine, err)
	}
	again, err := maps.Apply(w, mine, metav1.ApplyOptions{FieldManager: "two"})
	if err != nil || again.ResourceVersion != got.ResourceVersion {
		return fmt.Errorf(
			"applying the same again changed %s to %s (%v)", got.ResourceVersion,
			again.ResourceVersion, err,
		)
	}
	made, err := w.client.AppsV1().Deployments(w.namespace).Apply(
		w, deployment("web", 0), metav1.ApplyOptions{FieldManager: "one"},
	)
	if err != nil || *made.Spec.RevisionHistoryLimit != 10 ||
		made.Spec.Template.Spec.Containers[0].Ports[0].Protocol != corev1.ProtocolTCP {
		return fmt.Errorf("the applied deployment lacks its defaults (%v)", err)
	}
	node, err := w.client.CoreV1().Nodes().Apply(
		w, coreapply.Node("go-apply").WithLabels(map[string]string{"a": "b"}),
		metav1.ApplyOptions{FieldManager: "one"},
	)
	if err != nil {
		return err
	}
	condition := coreapply.NodeCondition().WithType("Good").WithStatus("True").
		WithReason("Test").WithMessage("m").WithLastHeartbeatTime(
		metav1.Now(),
	).WithLastTransitionTime(metav1.Now())
	node, err = w.client.CoreV1().Nodes().ApplyStatus(
		w, coreapply.Node("go-apply").WithStatus(coreapply.NodeStatus().WithConditions(condition)),
		metav1.ApplyOptions{FieldManager: "status"},
	)
	if err != nil {
		return err
	}
	found := false
	for _, c := range node.Status.Conditions {
		found = found || c.Type == "Good"
	}
	if !found || node.Labels["a"] != "b" {
		return fmt.Errorf("applying the status gave %v", node.Status.Conditions)
	}
	return w.client.CoreV1().Nodes().Delete(w, "go-apply", metav1.DeleteOptions{})
}

// eventsFlow tests both recorders: the events exist, and repeated ones are counted instead of
// stored again.
func eventsFlow(w *world) error {
	about, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(
		w, configMap("about", nil), metav1.CreateOptions{},
	)
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(w))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(
		&typedcore.EventSinkImpl{Interface: w.client.CoreV1().Events("")},
	)
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "go-test"})
	events1 := events.NewBroadcaster(&events.EventSinkImpl{Interface: w.client.EventsV1()})
	events1.StartRecordingToSink(w.Done())
	newer := events1.NewRecorder(scheme.Scheme, "example.com/go-test")
	list := &cache.ListWatch{
		ListWithContextFunc: func(
			ctx context.Context, o metav1.ListOptions,
		) (r2 runtimeObject, err error) {
			return w.client.CoreV1().Events(w.namespace).List(ctx, o)
		},
		WatchFuncWithContext: func(
			ctx context.Context, o metav1.ListOptions,
		) (watch.Interface, error) {
			return w.client.CoreV1().Events(w.namespace).Watch(ctx, o)
		},
	}
	ctx, cancel := context.WithTimeout(w, patience)
	defer cancel()
	for range 3 {
		recorder.Event(about, corev1.EventTypeNormal, "Counted", "the same thing happened")
	}
	newer.Eventf(about, nil, corev1.EventTypeWarning, "Noted", "Noting", "by the newer recorder")
	counted, noted := false, false
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Event{}, nil, func(
		e watch.Event,
	) (bool, error) {
		event := e.Object.(*corev1.Event)
		counted = counted || event.Reason == "Counted" && event.Count == 3
		noted = noted || event.Reason == "Noted" &&
			event.ReportingController == "example.com/go-test" && event.Action == "Noting"
		return counted && noted, nil
	}); err != nil {
		return fmt.Errorf("counted to three: %t, noted: %t: %w", counted, noted, err)
	}
	selected, err := w.client.CoreV1().Events(w.namespace).List(
		w,
		metav1.ListOptions{
			FieldSelector: fields.Set{
				"involvedObject.uid": string(about.UID), "type": "Warning",
			}.String(),
		},
	)
	if err != nil || len(selected.Items) != 1 {
		return fmt.Errorf("a field selector found %d of 1 warnings (%v)", len(selected.Items), err)
	}
	again, err := w.client.EventsV1().Events(w.namespace).Get(
		w, selected.Items[0].Name, metav1.GetOptions{},
	)
	if err != nil || again.Note != "by the newer recorder" || again.Regarding.Name != "about" {
		return fmt.Errorf("the event read as events.k8s.io/v1 says %q (%v)", again.Note, err)
	}
	return nil
}

// electionFlow tests leader election with a Lease: when the leader releases it, the other candidate
// leads.
func electionFlow(w *world) error {
	changes := make(chan string, 10)
	start := func(ctx context.Context, id string) {
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: w.namespace},
			Client:     w.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		}
		go leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second,
			RetryPeriod: 500 * time.Millisecond, ReleaseOnCancel: true, Name: id,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { changes <- id + " leads" },
				OnStoppedLeading: func() { changes <- id + " ended" }}})
	}
	first, letGo := context.WithCancel(w)
	start(first, "first")
	if err := await(
		"the first leader",
		changes,
		func(c string) bool { return c == "first leads" },
	); err != nil {
		letGo()
		return err
	}
	start(w, "second")
	letGo()
	if err := await(
		"the second leader",
		changes,
		func(c string) bool { return c == "second leads" },
	); err != nil {
		return err
	}
	lease, err := w.client.CoordinationV1().Leases(w.namespace).Get(
		w, "leader", metav1.GetOptions{},
	)
	if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "second" ||
		*lease.Spec.LeaseTransitions < 1 {
		return fmt.Errorf("the lease says %v (%v)", lease.Spec, err)
	}
	return nil
}

// errorsFlow tests the kinds of errors that programs distinguish.
func errorsFlow(w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	if _, err := maps.Get(w, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading a missing object gave %v", err)
	}
	made, err := maps.Create(
		w, configMap("counter", map[string]string{"n": "0"}), metav1.CreateOptions{},
	)
	if err != nil {
		return err
	}
	if _, err := maps.Create(
		w, configMap("counter", nil), metav1.CreateOptions{},
	); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating it again gave %v", err)
	}
	old := made.DeepCopy()
	made.Data["n"] = "1"
	if _, err := maps.Update(w, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err := maps.Update(w, old, metav1.UpdateOptions{}); err != nil {
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("updating an old state gave %v", err)
		}
	} else {
		return fmt.Errorf("an old state overwrote a newer one")
	}
	if _, err := maps.Create(
		w, configMap("Not_A_Name", nil), metav1.CreateOptions{},
	); !apierrors.IsInvalid(err) ||
		!apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) {
		return fmt.Errorf("an invalid name gave %v", err)
	}
	wrong := types.UID("of-another")
	if err := maps.Delete(
		w, "counter", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}},
	); !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting with another uid gave %v", err)
	}
	if _, err := maps.List(
		w, metav1.ListOptions{LabelSelector: "a in ("},
	); !apierrors.IsBadRequest(err) {
		return fmt.Errorf("a broken selector gave %v", err)
	}
	if _, err := maps.Watch(w, metav1.ListOptions{ResourceVersion: "99999999999999"}); err != nil &&
		!apierrors.IsTimeout(err) && !apierrors.IsResourceExpired(err) {
		return fmt.Errorf("watching from the future gave %v", err)
	}
	// No increment is lost if writers retry on conflict.
	var group sync.WaitGroup
	failures := make(chan error, 8)
	for range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 5 {
				for {
					current, err := maps.Get(w, "counter", metav1.GetOptions{})
					if err != nil {
						failures <- err
						return
					}
					current.Data["n"] += "+"
					if _, err = maps.Update(w, current, metav1.UpdateOptions{}); err == nil {
						break
					}
					if !apierrors.IsConflict(err) {
						failures <- err
						return
					}
				}
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return fmt.Errorf("a writer failed: %w", err)
	default:
	}
	if got, err := maps.Get(w, "counter", metav1.GetOptions{}); err != nil ||
		got.Data["n"] != "1"+strings.Repeat("+", 40) {
		return fmt.Errorf("40 increments left %q (%v)", got.Data["n"], err)
	}
	return nil
}

// discoveryFlow tests discovery, the mapping of kinds and the documents that tools read.
func discoveryFlow(w *world) error {
	cached := memory.NewMemCacheClient(w.client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "StatefulSet"})
	if err != nil || mapping.Resource.Resource != "statefulsets" ||
		mapping.Scope.Name() != "namespace" {
		return fmt.Errorf("StatefulSet maps to %v (%v)", mapping, err)
	}
	if resource, err := restmapper.NewShortcutExpander(mapper, cached, nil).ResourceFor(
		schema.GroupVersionResource{Resource: "pvc"},
	); err != nil || resource.Resource != "persistentvolumeclaims" {
		return fmt.Errorf("pvc maps to %v (%v)", resource, err)
	}
	preferred, err := w.client.Discovery().ServerPreferredResources()
	if err != nil || len(preferred) < 15 {
		return fmt.Errorf("%d groups are preferred (%v)", len(preferred), err)
	}
	version, err := w.client.Discovery().ServerVersion()
	if err != nil || version.Major != "1" || version.Minor != "37" ||
		!strings.HasPrefix(version.GitVersion, "v1.37.1") {
		return fmt.Errorf("the version is %v (%v)", version, err)
	}
	document, err := w.client.Discovery().OpenAPISchema()
	if err != nil || len(document.GetDefinitions().GetAdditionalProperties()) < 300 {
		return fmt.Errorf("OpenAPI 2 has too few definitions (%v)", err)
	}
	paths, err := w.client.Discovery().OpenAPIV3().Paths()
	if err != nil || paths["apis/apps/v1"] == nil {
		return fmt.Errorf("OpenAPI 3 lacks apis/apps/v1 (%v)", err)
	}
	for _, kind := range []string{
		"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
	} {
		if text, err := paths["apis/apps/v1"].Schema(kind); err != nil || len(text) < 10000 {
			return fmt.Errorf(
				"OpenAPI 3 of apis/apps/v1 as %s has %d bytes (%v)", kind, len(text), err,
			)
		}
	}
	return nil
}

// subresourcesFlow tests subresources: scale, status, eviction with its budget, token, and log of a
// pod that never ran.
func subresourcesFlow(w *world) error {
	sets := w.client.AppsV1().Deployments(w.namespace)
	if _, err := sets.Apply(
		w, deployment("web", 1), metav1.ApplyOptions{FieldManager: "one"},
	); err != nil {
		return err
	}
	scale, err := sets.GetScale(w, "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 || scale.Status.Selector != "app=web" {
		return fmt.Errorf("the scale is %v (%v)", scale, err)
	}
	// The deployment's controller writes, too.
	if err := retry.OnError(wait.Backoff{
		Steps:    100,
		Duration: 10 * time.Millisecond,
	}, apierrors.IsConflict, func() error {
		if scale, err = sets.GetScale(w, "web", metav1.GetOptions{}); err != nil {
			return err
		}
		scale.Spec.Replicas = 3
		_, err := sets.UpdateScale(w, "web", scale, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("scaling to three: %w", err)
	}
	if _, err := sets.UpdateScale(
		w, "web",
		&autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: scale.ResourceVersion},
			Spec:       autoscalingv1.ScaleSpec{Replicas: 9},
		},
		metav1.UpdateOptions{},
	); !apierrors.IsConflict(err) {
		return fmt.Errorf("scaling an old state gave %v", err)
	}
	if _, err := sets.Patch(
		w, "web", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/replicas","value":2}]`), metav1.PatchOptions{},
		"scale",
	); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w, patience)
	defer cancel()
	list := &cache.ListWatch{
		ListWithContextFunc: func(
			ctx context.Context, o metav1.ListOptions,
		) (runtimeObject, error) {
			return w.client.CoreV1().Pods(w.namespace).List(ctx, o)
		},
		WatchFuncWithContext: func(
			ctx context.Context, o metav1.ListOptions,
		) (watch.Interface, error) {
			return w.client.CoreV1().Pods(w.namespace).Watch(ctx, o)
		},
	}
	live := map[string]bool{}
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, nil, func(
		e watch.Event,
	) (bool, error) {
		name := e.Object.(*corev1.Pod).Name
		live[name] = true
		if e.Type == watch.Deleted {
			delete(live, name)
		}
		return len(live) == 2, nil
	}); err != nil {
		return fmt.Errorf("%d of 2 pods are there: %w", len(live), err)
	}
	pod, err := w.client.CoreV1().Pods(w.namespace).Create(
		w,
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "alone", Labels: map[string]string{"app": "alone"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		},
		metav1.CreateOptions{},
	)
	if err != nil {
		return err
	}
	pod.Status.Conditions = append(
		pod.Status.Conditions,
		corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue},
	)
	pod.Status.Message = "from the status"
	if pod, err = w.client.CoreV1().Pods(w.namespace).UpdateStatus(
		w, pod, metav1.UpdateOptions{},
	); apierrors.IsConflict(err) {
		// The scheduler has written its condition meanwhile.
		pod, err = w.client.CoreV1().Pods(w.namespace).Patch(
			w, "alone", types.StrategicMergePatchType,
			[]byte(`{"status":{"message":"from the status"}}`), metav1.PatchOptions{}, "status",
		)
	}
	if err != nil || pod.Status.Message != "from the status" {
		return fmt.Errorf("the status says %q (%v)", pod.Status.Message, err)
	}
	if err := w.client.CoreV1().Pods(w.namespace).EvictV1(
		w, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "alone"}},
	); err != nil {
		return fmt.Errorf("evicting: %w", err)
	}
	if _, err := w.client.CoreV1().Pods(w.namespace).GetLogs(
		"none", &corev1.PodLogOptions{},
	).DoRaw(w); !apierrors.IsNotFound(err) {
		return fmt.Errorf("logs of no pod gave %v", err)
	}
	return nil
}
