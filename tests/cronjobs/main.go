// Command cronjobs records what upstream's controller of CronJobs and its parser of schedules
// answer, one line of JSON each.
//
//	go run .: activations near the changes of the clocks, one in 60 of the simulated steps, texts
//	go run . -all: every activation of three years, every simulated step, texts
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"time"
	_ "time/tzdata"
	"unsafe"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/batch/validation"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/util/parsers"
)

//go:embed schedules.txt
var schedules string

//go:embed zones.txt
var zones string

//go:embed texts.txt
var texts string

// Three years whose rules of time are settled in every version of the database of time zones.
var (
	begin = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
	end   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

//go:linkname syncCronJob k8s.io/kubernetes/pkg/controller/cronjob.(*ControllerV2).syncCronJob
func syncCronJob(
	*cronjob.ControllerV2, context.Context, *batchv1.CronJob, []*batchv1.Job,
) (*time.Duration, bool, error)

//go:linkname nextScheduleTimeDuration k8s.io/kubernetes/pkg/controller/cronjob.nextScheduleTimeDuration
func nextScheduleTimeDuration(*batchv1.CronJob, time.Time, cron.Schedule) *time.Duration

//go:linkname formatSchedule k8s.io/kubernetes/pkg/controller/cronjob.formatSchedule
func formatSchedule(*batchv1.CronJob, record.EventRecorder) string

// walk is the activations after From until To.
type walk struct {
	Schedule string `json:"schedule"`
	Zone     string `json:"zone"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
	Count    int    `json:"count"`
	Hash     string `json:"hash"`
}

// text is what the API server says about the two fields, for a new object or a changed one.
type text struct {
	Schedule string   `json:"schedule"`
	Zone     *string  `json:"zone,omitempty"`
	Old      *string  `json:"old,omitempty"`
	OldZone  *string  `json:"oldZone,omitempty"`
	Errors   []string `json:"errors"`
}

// step is one sync: the state before it and its result.
type step struct {
	Schedule string   `json:"schedule"`
	Zone     *string  `json:"zone,omitempty"`
	Created  int64    `json:"created"`
	Last     *int64   `json:"last,omitempty"`
	Deadline *int64   `json:"deadline,omitempty"`
	Policy   string   `json:"policy"`
	Suspend  bool     `json:"suspend,omitempty"`
	Active   []string `json:"active,omitempty"`
	Now      string   `json:"now"`
	// The result.
	Events  []string `json:"events,omitempty"`
	Requeue *int64   `json:"requeue,omitempty"`
	Job     string   `json:"job,omitempty"`
	For     string   `json:"for,omitempty"`
	Deleted []string `json:"deleted,omitempty"`
	// Changed is the wait after a change of the schedule.
	Changed *int64 `json:"changed,omitempty"`
}

func lines(text string) []string {
	var all []string
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if !strings.HasPrefix(line, "# Schedules") {
			all = append(all, line)
		}
	}
	return all
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

var out = bufio.NewWriter(os.Stdout)

func write(kind string, value any) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]any{kind: value}); err != nil {
		panic(err)
	}
	must(out.Write(line.Bytes()))
}

// activations walks over a stretch of time and folds each second into a hash (FNV-1a of 64 bits).
func activations(text, zone string, from, to time.Time) {
	schedule := must(cron.ParseStandard("TZ=" + zone + " " + text))
	line := walk{Schedule: text, Zone: zone, From: from.Unix(), To: to.Unix()}
	hash := uint64(14695981039346656037)
	for at := schedule.Next(from); !at.IsZero() && !at.After(to); at = schedule.Next(at) {
		line.Count++
		hash = (hash ^ uint64(at.Unix())) * 1099511628211
	}
	line.Hash = fmt.Sprintf("%016x", hash)
	write("walk", line)
}

// changes returns the times at which the clocks of a zone change.
func changes(zone string, from, to time.Time) []time.Time {
	location := must(time.LoadLocation(zone))
	var all []time.Time
	for at := from.In(location); at.Before(to); {
		_, next := at.ZoneBounds()
		if next.IsZero() || !next.Before(to) {
			break
		}
		all = append(all, next)
		at = next
	}
	return all
}

func walks(all bool) {
	for _, zone := range lines(zones) {
		for _, schedule := range lines(schedules) {
			if all {
				for from := begin; from.Before(end); from = from.AddDate(0, 1, 0) {
					activations(schedule, zone, from, from.AddDate(0, 1, 0))
				}
				continue
			}
			activations(schedule, zone, begin, begin.Add(26*time.Hour))
			for _, at := range changes(zone, begin, end) {
				activations(schedule, zone, at.Add(-4*time.Hour), at.Add(26*time.Hour))
			}
		}
	}
	// Midnights that were skipped and small changes, from the past. Upstream's search never ends
	// where a whole day was skipped, as in Pacific/Apia on 2011-12-30.
	for _, one := range []struct{ zone, day string }{
		{"America/Sao_Paulo", "2018-11-03"}, {"America/Asuncion", "2017-09-30"},
		{"America/Asuncion", "2024-10-05"}, {"Asia/Pyongyang", "2018-05-03"},
		{"America/Caracas", "2016-04-30"}, {"Europe/Istanbul", "2016-03-26"},
		{"Africa/Juba", "2021-01-31"}, {"Asia/Gaza", "2023-04-28"},
	} {
		from := must(time.Parse(time.DateOnly, one.day))
		for _, schedule := range lines(schedules) {
			activations(schedule, one.zone, from, from.AddDate(0, 0, 3))
		}
	}
}

// jobs takes the place of the API server: it has every active Job.
type jobs struct {
	made    *batchv1.Job
	deleted []string
}

func (j *jobs) GetJob(namespace, name string) (*batchv1.Job, error) {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name),
	}}, nil
}

func (j *jobs) CreateJob(namespace string, job *batchv1.Job) (*batchv1.Job, error) {
	made := job.DeepCopy()
	made.Namespace, made.UID = namespace, types.UID("uid-"+job.Name)
	j.made = made
	return made, nil
}

func (j *jobs) DeleteJob(_ string, name string) error {
	j.deleted = append(j.deleted, name)
	return nil
}

func set(controller *cronjob.ControllerV2, field string, value any) {
	f := reflect.ValueOf(controller).Elem().FieldByName(field)
	reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
}

// upstream is the controller with a clock, recorder and API server of ours.
type upstream struct {
	controller *cronjob.ControllerV2
	recorder   *record.FakeRecorder
	now        time.Time
}

func newUpstream() *upstream {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	controller := must(cronjob.NewControllerV2(
		context.Background(), factory.Batch().V1().Jobs(), factory.Batch().V1().CronJobs(), client,
	))
	u := &upstream{controller: controller, recorder: record.NewFakeRecorder(1000)}
	set(controller, "now", func() time.Time { return u.now })
	set(controller, "recorder", u.recorder)
	return u
}

// sync runs one sync of a CronJob, which it changes, and returns the record of it.
func (u *upstream) sync(object *batchv1.CronJob) step {
	line := step{
		Schedule: object.Spec.Schedule, Zone: object.Spec.TimeZone,
		Created: object.CreationTimestamp.Unix(), Deadline: object.Spec.StartingDeadlineSeconds,
		Policy: string(object.Spec.ConcurrencyPolicy), Suspend: *object.Spec.Suspend,
		Now: u.now.UTC().Format(time.RFC3339Nano),
	}
	if last := object.Status.LastScheduleTime; last != nil {
		seconds := last.Unix()
		line.Last = &seconds
	}
	for _, active := range object.Status.Active {
		line.Active = append(line.Active, active.Name)
	}
	if schedule, err := parsers.ParseCronScheduleWithPanicRecovery(
		formatSchedule(object, nil),
	); err == nil {
		wait := int64(*nextScheduleTimeDuration(object, u.now, schedule))
		line.Changed = &wait
	}
	api := &jobs{}
	set(u.controller, "jobControl", api)
	requeue, _, err := syncCronJob(u.controller, context.Background(), object, nil)
	if err != nil {
		panic(err)
	}
	if requeue != nil {
		wait := int64(*requeue)
		line.Requeue = &wait
	}
	if api.made != nil {
		line.Job = api.made.Name
		line.For = api.made.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
	}
	line.Deleted = api.deleted
	for len(u.recorder.Events) > 0 {
		event := <-u.recorder.Events
		if !strings.HasPrefix(event, "Normal SuccessfulCreate ") &&
			!strings.HasPrefix(event, "Normal SuccessfulDelete ") {
			line.Events = append(line.Events, event)
		}
	}
	return line
}

func pick[T any](random *rand.Rand, all ...T) T {
	return all[random.Intn(len(all))]
}

// passes returns by how much the clock moves before the next sync: the wait, a wait that ends
// early because of an event, or a clock that is set.
func passes(random *rand.Rand, requeue *time.Duration) time.Duration {
	part := func(unit time.Duration, most int) time.Duration {
		return time.Duration(random.Int63n(int64(unit) * int64(most)))
	}
	switch random.Intn(10) {
	case 0:
		return part(time.Minute, 90)
	case 1:
		return -part(time.Minute, 90)
	case 2:
		return part(time.Hour, 30)
	case 3:
		return -part(time.Hour, 30)
	case 4:
		return pick(random, part(time.Hour*24, 40), -part(time.Hour*24, 20))
	}
	if requeue == nil {
		return part(time.Hour, 200)
	}
	if random.Intn(6) == 0 {
		return time.Duration(random.Int63n(int64(*requeue) + 1))
	}
	return *requeue + part(time.Millisecond, 300)
}

// simulate moves the clock of one CronJob through its syncs.
func simulate(u *upstream, random *rand.Rand, schedule string, zone *string, steps, every int) {
	suspend := false
	object := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: "default", UID: "uid"},
		Spec:       batchv1.CronJobSpec{Schedule: schedule, TimeZone: zone, Suspend: &suspend},
	}
	span := end.Sub(begin)
	u.now = begin.Add(time.Duration(random.Int63n(int64(span))))
	object.CreationTimestamp = metav1.NewTime(u.now.Add(
		-time.Duration(random.Int63n(int64(time.Hour) * 24 * 60)),
	).Truncate(time.Second))
	for range steps {
		switch random.Intn(8) {
		case 0:
			object.Spec.StartingDeadlineSeconds = nil
		case 1:
			seconds := pick[int64](random, 0, 1, 10, 60, 600, 3600, 7200, 90_000, 1_000_000)
			object.Spec.StartingDeadlineSeconds = &seconds
		}
		object.Spec.ConcurrencyPolicy = pick(
			random, batchv1.AllowConcurrent, batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
			batchv1.ReplaceConcurrent,
		)
		suspend = random.Intn(20) == 0
		var left []corev1.ObjectReference
		for _, active := range object.Status.Active {
			if random.Intn(3) > 0 && len(left) < 5 {
				left = append(left, active)
			}
		}
		object.Status.Active = left
		line := u.sync(object)
		if random.Intn(every) == 0 {
			write("step", line)
		}
		var requeue *time.Duration
		if line.Requeue != nil {
			wait := time.Duration(*line.Requeue)
			requeue = &wait
		}
		u.now = u.now.Add(passes(random, requeue))
		if u.now.Before(begin.AddDate(-1, 0, 0)) || u.now.After(end) {
			u.now = begin.Add(time.Duration(random.Int63n(int64(span))))
		}
	}
}

func steps(seed int64, every int) {
	u, random := newUpstream(), rand.New(rand.NewSource(seed))
	for _, zone := range lines(zones) {
		for _, schedule := range lines(schedules) {
			simulate(u, random, schedule, &zone, 300, every)
		}
	}
	// Without a time zone, with one in the schedule, and what cannot be followed.
	bad := "Mars/Base"
	for _, schedule := range []string{
		"30 2 * * *", "@every 5m", "TZ=Europe/Berlin 30 2 * * *", "CRON_TZ=UTC @hourly", "TZ=0",
		"obvious error schedule", "60 * * * *", ", * * * *", "TZ=Mars/Base 0 0 * * *", "0 0 30 2 *",
		"@every x",
	} {
		simulate(u, random, schedule, nil, 10, 1)
	}
	berlin := "Europe/Berlin"
	simulate(u, random, "0 * * * *", &bad, 5, 1)
	simulate(u, random, "TZ=America/New_York 30 2 * * *", &berlin, 10, 1)
	simulate(u, random, "\"quoted\" * * *", &berlin, 5, 1)
}

func spec(schedule string, zone *string) batch.CronJobSpec {
	return batch.CronJobSpec{
		Schedule: schedule, TimeZone: zone, ConcurrencyPolicy: batch.AllowConcurrent,
	}
}

// judge prints what the API server says about the schedule and the time zone.
func judge(line text) {
	object := &batch.CronJob{Spec: spec(line.Schedule, line.Zone)}
	errors := validation.ValidateCronJobCreate(object, corevalidation.PodValidationOptions{})
	if line.Old != nil {
		old := &batch.CronJob{Spec: spec(*line.Old, line.OldZone)}
		errors = validation.ValidateCronJobUpdate(
			object, old, corevalidation.PodValidationOptions{},
		)
	}
	line.Errors = []string{}
	for _, one := range errors {
		if one.Field == "spec.schedule" || one.Field == "spec.timeZone" {
			line.Errors = append(line.Errors, one.Error())
		}
	}
	write("text", line)
}

func main() {
	all := flag.Bool("all", false, "every activation and every step")
	seed := flag.Int64("seed", 1, "of the simulation")
	flag.Parse()
	// Times without a zone are those of the machine, and the controller logs what it records.
	time.Local = time.UTC
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	defer out.Flush()
	for _, line := range lines(texts) {
		schedule, zone, found := strings.Cut(line, "\t")
		if !found || strings.Contains(zone, "*") {
			judge(text{Schedule: line})
			continue
		}
		judge(text{Schedule: schedule, Zone: &zone})
	}
	tz, plain, utc, bad := "TZ=UTC 0 * * * *", "0 * * * *", "UTC", "Mars/Base"
	judge(text{Schedule: tz, Old: &tz})
	judge(text{Schedule: tz, Zone: &utc, Old: &tz})
	judge(text{Schedule: tz, Zone: &utc, Old: &tz, OldZone: &utc})
	judge(text{Schedule: "CRON_TZ=UTC 5 * * * *", Old: &tz})
	judge(text{Schedule: "TZ=Mars/Base 5 * * * *", Old: &tz})
	judge(text{Schedule: tz, Old: &plain})
	judge(text{Schedule: plain, Old: &tz, Zone: &utc})
	judge(text{Schedule: plain, Zone: &bad, Old: &plain, OldZone: &bad})
	judge(text{Schedule: plain, Zone: &bad, Old: &plain, OldZone: &utc})
	judge(text{Schedule: plain, Zone: &bad, Old: &plain})
	judge(text{Schedule: "60 * * * *", Old: &plain})
	judge(text{Schedule: "60 * * * *", Old: func() *string { s := "60 * * * *"; return &s }()})
	every := 60
	if *all {
		every = 1
	}
	steps(*seed, every)
	walks(*all)
}
