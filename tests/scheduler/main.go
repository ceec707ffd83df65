// Decides with the scheduler of Kubernetes: reads a cluster and its pending pods from standard
// input, one object a line, and prints the decision about each pending pod, one a line. `run`
// compares the decisions with kube-lite's.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// Score of a node: the weighted total, and the weighted score of each plugin.
type nodeScore struct {
	Node    string           `json:"node"`
	Total   int64            `json:"total"`
	Plugins map[string]int64 `json:"plugins"`
}

// The decision about a pod.
type decision struct {
	Pod       string      `json:"pod"`
	Node      string      `json:"node,omitempty"`
	Feasible  []string    `json:"feasible,omitempty"`
	Scores    []nodeScore `json:"scores,omitempty"`
	Message   string      `json:"message,omitempty"`
	Plugins   []string    `json:"plugins,omitempty"`
	Nominated string      `json:"nominated,omitempty"`
	Victims   []string    `json:"victims,omitempty"`
	Error     string      `json:"error,omitempty"`
}

// A cluster, and upstream's scheduler for it.
type simulation struct {
	ctx      context.Context
	logger   klog.Logger
	sched    *scheduler.Scheduler
	snapshot *internalcache.Snapshot
	pods     informers.SharedInformerFactory
	victims  []string
	bound    int
	// By namespace and name: what `evict` removes from the cache.
	assigned map[string]*v1.Pod
	claims   *claims
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		os.Exit(1)
	}
}

// The configuration with upstream's defaults; null has none of its own.
func configuration(raw json.RawMessage) *schedulerapi.KubeSchedulerConfiguration {
	text := string(raw)
	if text == "" || text == "null" {
		text = `{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration"}`
	}
	object, _, err := configscheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	must(err)
	return object.(*schedulerapi.KubeSchedulerConfiguration)
}

func key(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

func start(config *schedulerapi.KubeSchedulerConfiguration, objects []runtime.Object) *simulation {
	s := &simulation{ctx: context.Background(), assigned: map[string]*v1.Pod{}}
	s.logger = klog.FromContext(s.ctx)
	client := fake.NewClientset(objects...)
	client.PrependReactor("delete", "pods",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			deleted := action.(clienttesting.DeleteAction)
			s.victims = append(s.victims, deleted.GetNamespace()+"/"+deleted.GetName())
			return true, nil, nil
		})
	client.PrependReactor("patch", "pods",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, &v1.Pod{}, nil })
	s.claims = watchClaims(client)
	s.pods = scheduler.NewInformerFactory(client, 0, nil)
	s.snapshot = internalcache.NewEmptySnapshot()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	all := int32(100)
	sched, err := scheduler.New(s.ctx, client, s.pods, nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithProfiles(config.Profiles...), scheduler.WithExtenders(config.Extenders...),
		scheduler.WithPercentageOfNodesToScore(&all), scheduler.WithNodeInfoSnapshot(s.snapshot))
	must(err)
	s.sched = sched
	s.pods.Start(s.ctx.Done())
	s.pods.WaitForCacheSync(s.ctx.Done())
	must(sched.WaitForHandlersSync(s.ctx))
	for _, profile := range sched.Profiles {
		s.claims.manager = profile.SharedDRAManager()
	}
	nodes, pods := 0, 0
	for _, object := range objects {
		switch object := object.(type) {
		case *v1.Node:
			nodes++
		case *resourceapi.ResourceClaim:
			s.claims.written[claimKey(object)] = object.ResourceVersion
		case *v1.Pod:
			if object.Spec.NodeName != "" {
				pods++
				s.assigned[key(object)] = object
			}
		}
	}
	must(wait.PollUntilContextTimeout(s.ctx, time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			count, err := sched.Cache.PodCount()
			if err != nil || count != pods {
				return false, err
			}
			if !s.claims.settled() {
				return false, nil
			}
			// The cache also counts nodes of which only a pod is known. A snapshot while nodes are added
			// would keep counts of images that are too small.
			known := 0
			for _, node := range sched.Cache.Dump().Nodes {
				if node.Node() != nil {
					known++
				}
			}
			return known == nodes, nil
		}))
	return s
}

// Runs the filters and scores of all nodes, as one scheduling cycle does.
func (s *simulation) score(profile framework.Framework, pod *v1.Pod) (fwk.CycleState, []fwk.NodeInfo, []fwk.NodePluginScores) {
	state := framework.NewCycleState()
	restriction, status, _ := profile.RunPreFilterPlugins(s.ctx, state, pod)
	if !status.IsSuccess() {
		return state, nil, nil
	}
	all, err := s.snapshot.NodeInfos().List()
	must(err)
	var feasible []fwk.NodeInfo
	for _, node := range all {
		if !restriction.AllNodes() && !restriction.NodeNames.Has(node.Node().Name) {
			continue
		}
		if profile.RunFilterPluginsWithNominatedPods(s.ctx, state, pod, node).IsSuccess() {
			feasible = append(feasible, node)
		}
	}
	feasible = s.passExtenders(pod, feasible)
	must(profile.RunPreScorePlugins(s.ctx, state, pod, feasible).AsError())
	scores, status := profile.RunScorePlugins(s.ctx, state, pod, feasible)
	must(status.AsError())
	s.addExtenders(pod, feasible, scores)
	return state, feasible, scores
}

// The nodes that pass the filters of the extenders.
func (s *simulation) passExtenders(pod *v1.Pod, feasible []fwk.NodeInfo) []fwk.NodeInfo {
	for _, extender := range s.sched.Extenders {
		if len(feasible) == 0 || !extender.IsInterested(pod) {
			continue
		}
		passed, _, _, err := extender.Filter(pod, feasible)
		if err == nil {
			feasible = passed
		} else if !extender.IsIgnorable() {
			must(err)
		}
	}
	return feasible
}

// Adds the scores of the extenders to those of the plugins.
func (s *simulation) addExtenders(pod *v1.Pod, nodes []fwk.NodeInfo, scores []fwk.NodePluginScores) {
	sums := map[string]int64{}
	for _, extender := range s.sched.Extenders {
		if !extender.IsInterested(pod) {
			continue
		}
		// A failed extender gives no scores.
		if hosts, weight, err := extender.Prioritize(pod, nodes); err == nil {
			for _, host := range *hosts {
				sums[host.Host] += host.Score * weight * fwk.MaxNodeScore / extenderv1.MaxExtenderPriority
			}
		}
	}
	for i := range scores {
		sum := sums[scores[i].Name]
		scores[i].Scores = append(scores[i].Scores, fwk.PluginScore{Name: "Extender", Score: sum})
		scores[i].TotalScore += sum
	}
}

// Decides about a pod, and puts it on the node or evicts what preemption chose.
func (s *simulation) decide(pod *v1.Pod) decision {
	out := decision{Pod: key(pod)}
	profile := s.sched.Profiles[pod.Spec.SchedulerName]
	info, err := framework.NewPodInfo(pod)
	must(err)
	queued := &framework.QueuedPodInfo{PodInfo: info}
	state := framework.NewCycleState()
	must(s.sched.Cache.UpdateSnapshot(s.logger, s.snapshot))
	result, err := s.sched.SchedulePod(s.ctx, profile, state, queued)
	if err == scheduler.ErrNoNodesAvailable {
		out.Message = err.Error()
		return out
	}
	if fit, ok := err.(*framework.FitError); ok {
		s.victims = nil
		for name := range fit.Diagnosis.UnschedulablePlugins {
			out.Plugins = append(out.Plugins, name)
		}
		sort.Strings(out.Plugins)
		if profile.HasPostFilterPlugins() {
			post, status := profile.RunPostFilterPlugins(s.ctx, state, pod, fit.Diagnosis.NodeToStatus)
			s.claims.settle()
			fit.Diagnosis.PostFilterMsg = status.Message()
			if post != nil && post.NominatingInfo != nil {
				out.Nominated = post.NominatedNodeName
			}
		}
		out.Message = fit.Error()
		sort.Strings(s.victims)
		out.Victims = s.victims
		return out
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	reserved, feasible, scores := s.score(profile, pod)
	out.Node = result.SuggestedHost
	// A cycle with one node, also a nominated one, computes no scores.
	if result.FeasibleNodes == 1 {
		out.Feasible = []string{out.Node}
	} else {
		for _, node := range feasible {
			out.Feasible = append(out.Feasible, node.Node().Name)
		}
		sort.Strings(out.Feasible)
		for _, score := range scores {
			plugins := map[string]int64{}
			for _, plugin := range score.Scores {
				if plugin.Score != 0 {
					plugins[plugin.Name] = plugin.Score
				}
			}
			out.Scores = append(out.Scores, nodeScore{score.Name, score.TotalScore, plugins})
		}
		sort.Slice(out.Scores, func(i, j int) bool { return out.Scores[i].Node < out.Scores[j].Node })
		best := out.Scores[0]
		for _, score := range out.Scores {
			if score.Total > best.Total {
				best = score
			}
		}
		out.Node = best.Node
	}
	s.bind(profile, reserved, pod, out.Node)
	return out
}

// Puts the pod on the node. Its start time grows with each bound pod, so that preemption never has
// two candidates that are equal.
func (s *simulation) bind(profile framework.Framework, state fwk.CycleState, pod *v1.Pod, node string) {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	s.bound++
	started := metav1.NewTime(time.Unix(1800000000+int64(s.bound), 0))
	bound.Status.StartTime = &started
	must(s.sched.Cache.AddPod(s.logger, bound))
	s.assigned[key(pod)] = bound
	s.sched.SchedulingQueue.DeleteNominatedPodIfExists(pod)
	must(profile.RunReservePluginsReserve(s.ctx, state, bound, node).AsError())
	if preflight := profile.RunPreBindPreFlights(s.ctx, state, bound, node); preflight.IsSkip() {
		return
	}
	// Nobody binds volumes here.
	state.SetSkipPreBindPlugins(sets.New("VolumeBinding").Union(state.GetSkipPreBindPlugins()))
	must(profile.RunPreBindPlugins(s.ctx, state, bound, node).AsError())
	s.claims.settle()
}

// Removes the victims, and nominates the node for the pod; `leaving` keeps the victims with a
// deletion timestamp, as while they terminate.
func (s *simulation) preempt(pod *v1.Pod, out decision, leaving bool) *v1.Pod {
	for _, name := range out.Victims {
		victim := s.assigned[name]
		if leaving {
			gone := victim.DeepCopy()
			now := metav1.NewTime(time.Unix(1900000000, 0))
			gone.DeletionTimestamp = &now
			gone.Status.Conditions = append(gone.Status.Conditions, v1.PodCondition{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
			})
			must(s.sched.Cache.UpdatePod(s.logger, victim, gone))
			s.assigned[name] = gone
			continue
		}
		must(s.sched.Cache.RemovePod(s.logger, victim))
		delete(s.assigned, name)
	}
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = out.Nominated
	must(s.pods.Core().V1().Pods().Informer().GetIndexer().Update(nominated))
	info, err := framework.NewPodInfo(nominated)
	must(err)
	s.sched.SchedulingQueue.AddNominatedPod(s.logger, info, nil)
	return nominated
}

func main() {
	klog.SetOutput(os.Stderr)
	klog.LogToStderr(false)
	// Preemption deletes its victims before it returns.
	must(utilfeature.DefaultMutableFeatureGate.Set("SchedulerAsyncPreemption=false"))
	_ = configv1.SchemeGroupVersion
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	output := json.NewEncoder(os.Stdout)
	if !input.Scan() {
		must(fmt.Errorf("standard input is empty"))
	}
	var header struct {
		Config json.RawMessage `json:"config"`
	}
	must(json.Unmarshal(input.Bytes(), &header))
	var objects []runtime.Object
	var pending []*v1.Pod
	for input.Scan() {
		object, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(input.Bytes(), nil, nil)
		must(err)
		objects = append(objects, object)
		if pod, ok := object.(*v1.Pod); ok && pod.Spec.NodeName == "" {
			pending = append(pending, pod)
		}
	}
	must(input.Err())
	s := start(configuration(header.Config), objects)
	for _, pod := range pending {
		out := s.decide(pod)
		must(output.Encode(out))
		if out.Nominated == "" {
			continue
		}
		leaving := pod.Annotations["victims"] == "leaving"
		nominated := s.preempt(pod, out, leaving)
		must(output.Encode(s.decide(nominated)))
	}
}
