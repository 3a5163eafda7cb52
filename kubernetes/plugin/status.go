// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/claim"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// Status writes the results for claims where users see them: on the claim, and as events of pods that are refused memory. It
// writes the latest state at a bounded rate, and logs and drops failed writes.
type Status struct {
	Kube   kubernetes.Interface
	Node   string
	Log    *slog.Logger
	Claims func(types.UID) (namespace, name string, found bool) // by UID, if prepared on this node
	Every  time.Duration                                        // minimum between two rounds of writes
	// Pools returns the enforcer's pools. It is called after a claim is prepared.
	Pools func(context.Context) ([]api.Pool, error)
	// UsedEvery is the minimum time between two writes of usage; each covers one claim.
	UsedEvery time.Duration

	mu       sync.Mutex
	wake     chan struct{} // receives when there is something to write
	pending  map[types.UID]prepared
	refused  map[types.UID]api.Event // the latest of each claim
	reported map[types.UID]time.Time
	pools    []api.Pool // the latest from the enforcer, nil once read
}

type prepared struct {
	claim *resourceapi.ResourceClaim
	err   error
}

// maxPending limits the claims remembered while the API server is unreachable.
const maxPending = 1024

// eventsEvery is the minimum time between two events about one claim.
const eventsEvery = 5 * time.Minute

// Prepared records the result of a Prepare.
func (s *Status) Prepared(c *resourceapi.ResourceClaim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = make(map[types.UID]prepared)
	}
	if _, known := s.pending[c.UID]; known || len(s.pending) < maxPending {
		s.pending[c.UID] = prepared{c, err}
		s.signal()
	}
}

// Refused records that a process of a claim was refused memory.
func (s *Status) Refused(uid types.UID, e api.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused, s.reported = make(map[types.UID]api.Event), make(map[types.UID]time.Time)
	}
	maps.DeleteFunc(s.reported, func(_ types.UID, at time.Time) bool { return time.Since(at) > eventsEvery })
	if _, lately := s.reported[uid]; lately || len(s.refused) >= maxPending {
		return
	}
	s.refused[uid] = e
	s.signal()
}

func (s *Status) setPools(pools []api.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools = pools
	if slices.ContainsFunc(pools, func(p api.Pool) bool { return claim.ClaimOf(p.Name) != "" }) {
		s.signal()
	}
}

// signal wakes Run. The caller holds the lock.
func (s *Status) signal() {
	select {
	case s.waker() <- struct{}{}:
	default:
	}
}

func (s *Status) waker() chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
	}
	return s.wake
}

// Run writes until ctx ends.
func (s *Status) Run(ctx context.Context) {
	var f figures
	var used time.Time // time of the last check of usage
	s.mu.Lock()
	wake := s.waker()
	s.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		select { // collect further changes for the same round
		case <-ctx.Done():
			return
		case <-time.After(s.Every):
		}
		s.mu.Lock()
		pending, refused, pools := s.pending, s.refused, s.pools
		s.pending, s.refused, s.pools = nil, make(map[types.UID]api.Event), nil
		if s.reported == nil {
			s.reported = make(map[types.UID]time.Time)
		}
		for uid := range refused {
			s.reported[uid] = time.Now()
		}
		s.mu.Unlock()
		if len(pending) > 0 { // read their new pools
			pools = s.ask(ctx)
		}
		if pools != nil {
			f.read(pools)
		} else { // no usage is known
			f.pools = nil
		}
		due := pools != nil && time.Since(used) >= s.UsedEvery
		for uid, p := range pending {
			err := s.write(ctx, p, &f)
			if err == nil {
				f.wrote(uid)
			} else if !apierrors.IsNotFound(err) && ctx.Err() == nil {
				s.Log.Warn("writing a claim's status failed", "claim", p.claim.Namespace+"/"+p.claim.Name, "err", err)
			}
		}
		if due {
			used = time.Now()
			if err := s.use(ctx, &f); err != nil && ctx.Err() == nil {
				s.Log.Warn("writing a claim's use failed", "err", err)
			}
		}
		for uid, e := range refused {
			if err := s.createEvent(ctx, uid, e); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				s.Log.Warn("writing an event of a pod failed", "claim", uid, "err", err)
			}
		}
	}
}

// ask returns the enforcer's pools, or nil without a timely answer.
func (s *Status) ask(ctx context.Context) []api.Pool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	pools, err := s.Pools(ctx)
	if err != nil {
		return nil
	}
	return pools
}

// use writes the usage of one claim, if one is due.
func (s *Status) use(ctx context.Context, f *figures) error {
	uid := f.due()
	if uid == "" {
		return nil
	}
	f.wrote(uid) // even if the write fails, so that the others come first
	namespace, name, found := s.Claims(uid)
	if !found {
		return nil
	}
	c, err := s.get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		if was := condition(c); c.UID != uid || c.Status.Allocation == nil || was == nil || was.Status != metav1.ConditionTrue {
			return nil // a refused claim may have pools of its first requests
		}
		err = s.write(ctx, prepared{claim: c}, f)
	}
	if err != nil {
		return fmt.Errorf("claim %s/%s: %w", namespace, name, err)
	}
	return nil
}

func (s *Status) get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// said is the data of a device's status. Sizes are quantities of Kubernetes.
type said struct {
	Granted string `json:"granted"`        // as requested by the claim
	Used    string `json:"used,omitempty"` // on this device, by all users of the request
	UUID    string `json:"uuid"`
}

// condition returns the Ready condition of a claim, or nil.
func condition(c *resourceapi.ResourceClaim) *metav1.Condition {
	for _, d := range c.Status.Devices {
		for i := range d.Conditions {
			if d.Driver == config.Driver && d.Conditions[i].Type == "Ready" {
				return &d.Conditions[i]
			}
		}
	}
	return nil
}

// ready returns a claim's new Ready condition. It keeps the transition time if the status is unchanged.
func ready(c *resourceapi.ResourceClaim, err error) *metaapply.ConditionApplyConfiguration {
	is, reason, message := metav1.ConditionTrue, "Prepared", "the quota is in force on the node"
	if err != nil {
		is, reason, message = metav1.ConditionFalse, "Refused", err.Error()
	}
	since := metav1.Now()
	if was := condition(c); was != nil && was.Status == is {
		since = was.LastTransitionTime
	}
	return metaapply.Condition().WithType("Ready").WithStatus(is).WithReason(reason).WithMessage(message).WithLastTransitionTime(since)
}

func (s *Status) write(ctx context.Context, p prepared, f *figures) error {
	is := ready(p.claim, p.err)
	status := resourceapply.ResourceClaimStatus()
	for _, r := range p.claim.Status.Allocation.Devices.Results {
		if r.Driver != config.Driver {
			continue
		}
		memory := r.ConsumedCapacity[inventory.Memory]
		says := said{Granted: memory.String(), UUID: inventory.UUID(r.Device)}
		if used, known := f.of(p.claim, r); known {
			says.Used = quantity(used)
		}
		data, err := json.Marshal(says)
		if err != nil {
			return err
		}
		d := resourceapply.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(r.Pool).WithDevice(r.Device).WithConditions(is).
			WithData(runtime.RawExtension{Raw: data})
		if r.ShareID != nil {
			d.WithShareID(string(*r.ShareID))
		}
		status.WithDevices(d)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := s.Kube.ResourceV1().ResourceClaims(p.claim.Namespace).ApplyStatus(ctx,
		resourceapply.ResourceClaim(p.claim.Name, p.claim.Namespace).WithUID(p.claim.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: config.Driver, Force: true})
	return err
}

// createEvent creates an event on the pods that use the claim.
func (s *Status) createEvent(ctx context.Context, uid types.UID, e api.Event) error {
	namespace, name, found := s.Claims(uid)
	if !found {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := s.get(ctx, namespace, name)
	if err != nil || c.UID != uid {
		return err
	}
	for _, consumer := range c.Status.ReservedFor {
		if consumer.Resource != "pods" {
			continue
		}
		at := metav1.NewTime(e.Time)
		_, err := s.Kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: consumer.Name + ".", Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: consumer.Name, UID: consumer.UID},
			Type:           corev1.EventTypeWarning, Reason: "VRAMRefused", Message: refusal(e, name),
			FirstTimestamp: at, LastTimestamp: at, Count: 1, Source: corev1.EventSource{Component: config.Driver, Host: s.Node},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func refusal(e api.Event, claim string) string {
	who := "a process"
	if e.Command != "" {
		who = fmt.Sprintf("a process (%s)", e.Command)
	}
	what := "memory"
	if e.Requested > 0 {
		what = api.FormatSize(e.Requested)
	}
	if e.Limit == nil {
		return fmt.Sprintf("%s was refused %s: it is beyond the quota of claim %s", who, what, claim)
	}
	var used uint64
	if e.Used != nil {
		used += *e.Used
	}
	if e.Overhead != nil {
		used += *e.Overhead
	}
	said := fmt.Sprintf("%s was refused %s: claim %s has %s, of which %s were in use", who, what, claim, api.FormatSize(*e.Limit), api.FormatSize(used))
	if e.Requested > 0 {
		said += fmt.Sprintf("; %s would have sufficed", quantity(used+e.Requested))
	}
	return said
}

// quantity formats bytes, rounded up to MiB, as a claim asks for them.
func quantity(bytes uint64) string {
	return resource.NewQuantity(int64((bytes+1<<20-1)>>20<<20), resource.BinarySI).String()
}
