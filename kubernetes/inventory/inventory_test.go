// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
)

const (
	gib   = 1 << 30
	uuid0 = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	uuid1 = "GPU-10112233-4455-6677-8899-aabbccddeeff"
)

func device(uuid string, index int, free uint64) api.Device {
	return api.Device{UUID: uuid, Index: index, Name: "Card", Total: 80 * gib, Free: &free, PCI: "0000:3b:00.0", ComputeCapability: "8.9"}
}

func pool(name string, bytes uint64) api.Pool {
	return api.Pool{Name: name, Devices: []api.PoolUse{{Device: uuid0, Limit: bytes}}}
}

func value(t *testing.T, d resourceapi.Device) uint64 {
	t.Helper()
	c := d.Capacity[Memory]
	most := c.RequestPolicy.ValidValues
	if len(most) == 0 {
		most = append(most, *c.RequestPolicy.ValidRange.Max)
	}
	for what, q := range map[string]int64{"max": most[0].Value(), "default": c.RequestPolicy.Default.Value()} {
		if q != c.Value.Value() || q%step != 0 {
			t.Errorf("%s is %d where the value is %s", what, q, c.Value.String())
		}
	}
	return uint64(c.Value.Value())
}

func TestTheFullestDeviceComesFirst(t *testing.T) {
	got := Offer{}.Of(Host{Devices: []api.Device{device(uuid0, 0, 40*gib), device(uuid1, 1, 8*gib+5)}})
	if len(got) != 2 || got[0].Name != DeviceName(uuid1) || got[1].Name != DeviceName(uuid0) || UUID(got[0].Name) != uuid1 {
		t.Fatalf("got %+v", got)
	}
	if v := value(t, got[0]); v != 8*gib {
		t.Errorf("8 GiB and 5 bytes are published as %d", v)
	}
}

func TestClaimsCountInTheCapacityAndOtherQuotasDoNot(t *testing.T) {
	d := device(uuid0, 0, 40*gib)
	d.Pools = map[string]uint64{PoolPrefix + "a-0": 8 * gib, "llm": 4 * gib}
	// The list of pools is of another moment, in which the claim's pool was not there.
	h := Host{Devices: []api.Device{d}, Pools: []api.Pool{pool("llm", 4*gib)}}
	if v := value(t, Offer{}.Of(h)[0]); v != 48*gib {
		t.Errorf("with a claim's pool of 8 GiB beside 40 free: %d", v)
	}
	h.Devices[0].Reserve, h.Devices[0].OutsideUsed = gib, 3*gib+1
	if v := value(t, Offer{}.Of(h)[0]); v != 48*gib-2*gib-256<<20 {
		t.Errorf("with 3 GiB and a byte outside slices, of which one is reserved: %d", v)
	}
	h.Devices[0].OutsideUsed = 70 * gib
	if got := (Offer{}).Of(h); len(got) != 0 {
		t.Errorf("a device of which nothing is left: %+v", got)
	}
}

func TestACardIsADeviceOfItsOwnForElasticClaims(t *testing.T) {
	d := device(uuid0, 0, 10*gib)
	d.Pools = map[string]uint64{PoolPrefix + "a-0": 8 * gib}
	d.Elastic = &api.ElasticDevice{Promised: 100 * gib, Free: 60 * gib, Most: 76 * gib, Idle: 20*gib + 5, Pools: map[string]uint64{PoolPrefix + "b-0": 40 * gib}}
	h := Host{Devices: []api.Device{d, device(uuid1, 1, 8*gib)}}
	got := Offer{Elastic: true}.Of(h)
	if len(got) != 3 || got[2].Name != "elastic-"+DeviceName(uuid0) || UUID(got[2].Name) != uuid0 || !IsElastic(got[2].Name) || IsElastic(got[1].Name) {
		t.Fatalf("%+v", got)
	}
	for i, want := range []bool{false, false, true} {
		if is := got[i].Attributes[Elastic].BoolValue; is == nil || *is != want {
			t.Errorf("%s: elastic is %v", got[i].Name, is)
		}
	}
	// Of claims' pools each device counts its own; idle elastic ones go when a claim comes.
	if v := value(t, got[1]); v != 38*gib {
		t.Errorf("for claims: %d", v)
	}
	c := got[2].Capacity[Memory]
	if c.Value.Value() != 100*gib || c.RequestPolicy.ValidRange.Max.Value() != 76*gib || c.RequestPolicy.Default.Value() != 76*gib {
		t.Errorf("for elastic claims: %+v", c)
	}
	h.Devices[1].Elastic = &api.ElasticDevice{Free: 61 * gib, Most: 76 * gib}
	if got := (Offer{Elastic: true}).Of(h); len(got) != 4 || got[2].Name != ElasticName(uuid1) {
		t.Errorf("the emptiest is not the first: %+v", got)
	}
	h.Devices[1].Elastic = nil
	h.Devices[0].Elastic.Free, h.Devices[0].Elastic.Pools = 0, nil
	if got := (Offer{Elastic: true}).Of(h); len(got) != 2 {
		t.Errorf("a card of which nothing can be promised: %+v", got)
	}
}

func TestARequestWithoutASizeGetsTheOperatorsDefault(t *testing.T) {
	h := Host{Devices: []api.Device{device(uuid0, 0, 4*gib), device(uuid1, 1, 40*gib)}}
	h.Devices[1].Elastic = &api.ElasticDevice{Free: 60 * gib, Most: 50 * gib}
	for i, want := range []int64{4 * gib, 8 * gib, 8 * gib} { // the first has no more
		if is := (Offer{Elastic: true, Default: 8 * gib}).Of(h)[i].Capacity[Memory].RequestPolicy; is.Default.Value() != want || is.ValidRange.Max.Value() < want {
			t.Errorf("device %d: %+v", i, is)
		}
	}
	for text, want := range map[string]uint64{"8Gi": 8 * gib, "64Mi": 64 << 20, "63Mi": 0, "8G": 0, "-1Gi": 0, "": 0, "much": 0, "1e30": 0} {
		if got, err := ParseDefault(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}

func TestACardHasDevicesOfTheSizesThatTheOperatorNames(t *testing.T) {
	sizes, err := ParseSizes("8Gi,32Gi")
	if err != nil {
		t.Fatal(err)
	}
	o := Offer{Sizes: sizes}
	h := Host{Devices: []api.Device{device(uuid0, 0, 40*gib)}}
	devices := o.Of(h)
	names := make(map[string]bool)
	for i, d := range devices {
		size := uint64(40 * gib) // the card's device has all
		switch {
		case i > 10:
			size = 32 * gib
		case i > 0:
			size = 8 * gib
		}
		consumes, attribute := d.ConsumesCounters[0].Counters[Memory], d.Attributes[Size].StringValue
		if names[d.Name] = true; value(t, d) != size || uint64(consumes.Value.Value()) != size || UUID(d.Name) != uuid0 || (attribute == nil) != (i == 0) {
			t.Errorf("%s: %+v", d.Name, d)
		}
	}
	if want := o.Names(h.Devices[0]); len(devices) != 1+10+2 || len(want) != len(names) || !names[want[0]] || !names[want[12]] {
		t.Errorf("%d devices, with the names %v", len(devices), want)
	}
	pools := resources("n", devices).Pools["n"].Slices
	if len(pools) != 2 || len(pools[1].SharedCounters) != 1 {
		t.Fatalf("%+v", pools)
	}
	if memory := pools[1].SharedCounters[0].Counters[Memory]; memory.Value.Value() != 40*gib {
		t.Errorf("together they have %s", memory.Value.String())
	}
	*h.Devices[0].Free = 4 * gib
	if got := o.Of(h); len(got) != len(devices) {
		t.Errorf("with 4 GiB free there are %d devices: an allocated one of those that are gone does not count", len(got))
	}
	*h.Devices[0].Free = 0
	if got := o.Of(h); len(got) != 0 {
		t.Errorf("a card of which nothing is left: %+v", got)
	}
	for _, text := range []string{"8Gi,512Mi", "8Gi,8192Mi", "", "8Gi,"} { // small sizes would be many devices
		if got, err := ParseSizes(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestADeviceHasTheAttributesThatNVIDIAsDriverGivesIt(t *testing.T) {
	got := Offer{}.Of(Host{Driver: "580.159.04", Devices: []api.Device{device(uuid0, 0, gib)}})[0].Attributes
	for name, want := range map[resourceapi.QualifiedName]string{
		"type": "gpu", "uuid": uuid0, "productName": "Card", "architecture": "Ada Lovelace", "driverVersion": "580.159.4",
		"cudaComputeCapability": "8.9.0", "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
	} {
		a := got[name]
		if is := a.StringValue; is == nil {
			is = a.VersionValue
			if is == nil || *is != want {
				t.Errorf("%s: %+v, want %s", name, a, want)
			}
		} else if *is != want {
			t.Errorf("%s: %s, want %s", name, *is, want)
		}
	}
	for version, want := range map[string]string{"": "", "9.0": "9.0.0", "12": "12.0.0", "1.2.3.4": "", "a.b": ""} {
		if got := semantic(version); got != want {
			t.Errorf("version %q is %q, want %q", version, got, want)
		}
	}
	for capability, want := range map[string]string{"7.0": "Volta", "7.5": "Turing", "8.0": "Ampere", "9.0": "Hopper", "12.0": "Blackwell", "": "", "99.0": ""} {
		if got := architecture(capability); got != want {
			t.Errorf("compute capability %q is %q, want %q", capability, got, want)
		}
	}
}

func TestADeviceAboutWhichNVMLDoesNotAnswerIsTainted(t *testing.T) {
	h := Host{Devices: []api.Device{device(uuid0, 0, gib), device(uuid1, 1, gib)}, Health: api.Health{Checks: []api.Check{
		{Name: "host_memory"}, {Name: "truth", Device: uuid0}, {Name: "truth", Device: uuid1},
	}}}
	h.Devices[1].Used = new(uint64) // NVML is silent about single processes alone
	want := resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: "truth", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if got := (Offer{}).Of(h); !slices.Equal(got[0].Taints, []resourceapi.DeviceTaint{want}) || len(got[1].Taints) != 0 {
		t.Errorf("taints %+v and %+v", got[0].Taints, got[1].Taints)
	}
}

func TestMoreDevicesThanASliceMayHaveAreSeveralSlices(t *testing.T) {
	if got := resources("n", make([]resourceapi.Device, maxPerSlice+1)).Pools["n"].Slices; len(got) != 2 || len(got[1].Devices) != 1 {
		t.Errorf("%d slices", len(got))
	}
	if got := resources("n", nil); len(got.Pools) != 0 {
		t.Errorf("a node without a GPU publishes %+v", got)
	}
}

// enforcer is one that a test changes.
type enforcer struct {
	mu     sync.Mutex
	host   Host
	away   bool
	asked  int    // for its health, which is one of the questions for all of a host
	others int    // other questions
	driver string // its version
	events chan api.Event
	end    chan struct{} // of the events that are followed: it is started anew
}

func (e *enforcer) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *enforcer) err() error {
	if e.away {
		return api.ErrUnreachable
	}
	return nil
}

func (e *enforcer) Info(context.Context) (api.Info, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.others++
	return api.Info{Driver: cmp.Or(e.driver, "1.2.3")}, e.err()
}

func (e *enforcer) Devices(context.Context) ([]api.Device, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.others++
	return append([]api.Device{}, e.host.Devices...), e.err()
}

func (e *enforcer) Pools(context.Context) ([]api.Pool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.others++
	return e.host.Pools, e.err()
}

func (e *enforcer) Health(context.Context) (api.Health, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked++
	return e.host.Health, e.err()
}

func (e *enforcer) Events(ctx context.Context, _ string, _ uint64, _ bool, each func(api.Event) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.end:
			return api.ErrUnreachable
		case event := <-e.events:
			if err := each(event); err != nil {
				return err
			}
		}
	}
}

// writes are what a publisher wrote, and heard.
type writes struct {
	mu    sync.Mutex
	all   [][]resourceapi.Device
	at    []time.Time
	heard []Host
	err   error
}

func (w *writes) record(h Host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, h)
}

func (w *writes) publish(_ context.Context, r resourceslice.DriverResources) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var devices []resourceapi.Device
	for _, s := range r.Pools["n"].Slices {
		devices = append(devices, s.Devices...)
	}
	w.all, w.at = append(w.all, devices), append(w.at, time.Now())
	return w.err
}

func (w *writes) last() (devices []resourceapi.Device, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return nil, 0
	}
	return w.all[len(w.all)-1], len(w.all)
}

func start(t *testing.T, e *enforcer, times Times, before []resourceapi.Device) *writes {
	t.Helper()
	w := &writes{}
	e.events, e.end = make(chan api.Event), make(chan struct{})
	p := &Publisher{
		Enforcer: e, Node: "n", Times: times, Log: slog.New(slog.DiscardHandler), Publish: w.publish,
		OnHost: w.record, OnReached: func() {}, OnAway: func() {}, Event: func(api.Event) {}, Written: func() {},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx, before) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	await.That(t, what, is)
}

var quick = Times{Poll: 20 * time.Millisecond, Write: 10 * time.Millisecond, Timeout: 50 * time.Millisecond}

func TestWhileTheEnforcerIsAwayItsDevicesAreTainted(t *testing.T) {
	e := &enforcer{host: Host{Devices: []api.Device{device(uuid0, 0, gib)}}}
	w := start(t, e, quick, nil)
	tainted := func(want int) func() bool {
		return func() bool {
			devices, _ := w.last()
			return len(devices) == 1 && len(devices[0].Taints) == want
		}
	}
	eventually(t, "the device is published", tainted(0))
	e.change(func() { e.away = true })
	eventually(t, "it is tainted", tainted(1))
	e.change(func() { e.away = false })
	eventually(t, "no device is tainted", tainted(0))
}

func TestDriverStartedWithoutTheEnforcerTaintsPublishedDevices(t *testing.T) {
	e := &enforcer{away: true}
	w := start(t, e, quick, Offer{}.Of(Host{Devices: []api.Device{device(uuid0, 0, gib)}}))
	eventually(t, "it is tainted", func() bool {
		devices, count := w.last()
		return count == 1 && len(devices) == 1 && len(devices[0].Taints) == 1 && devices[0].Taints[0].Key == TaintUnreachable
	})
}

func TestANodeWithoutAGPUHasNoResourceSlice(t *testing.T) {
	w := start(t, &enforcer{}, quick, Offer{}.Of(Host{Devices: []api.Device{device(uuid0, 0, gib)}})) // which it had before
	eventually(t, "the published devices are withdrawn", func() bool {
		devices, count := w.last()
		return count > 0 && len(devices) == 0
	})
	if r := resources("n", nil); len(r.Pools) != 0 {
		t.Errorf("got %+v, want no pool", r)
	}
}

func TestADriverWithoutAnEnforcerWaitsAndPublishesNothing(t *testing.T) {
	e := &enforcer{away: true, host: Host{Devices: []api.Device{device(uuid0, 0, gib)}}}
	w := start(t, e, quick, nil)
	eventually(t, "the enforcer has been asked for longer than the timeout", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.others > 6
	})
	if devices, count := w.last(); count != 0 {
		t.Errorf("%d writes, the last of %v", count, devices)
	}
	e.change(func() { e.away = false })
	eventually(t, "the device is published when there is one", func() bool {
		devices, _ := w.last()
		return len(devices) == 1
	})
}

func TestWritesAreRateLimited(t *testing.T) {
	e := &enforcer{host: Host{Devices: []api.Device{device(uuid0, 0, gib)}}}
	times := Times{Poll: time.Minute, Write: 300 * time.Millisecond, Timeout: time.Second}
	w := start(t, e, times, nil)
	var free uint64
	for end := time.Now().Add(4 * times.Write); time.Now().Before(end); {
		free += gib
		e.change(func() { e.host.Devices[0] = device(uuid0, 0, free) })
		e.events <- api.Event{Kind: api.EventPoolCreated}
	}
	eventually(t, "the last change is written", func() bool {
		devices, _ := w.last()
		return len(devices) == 1 && value(t, devices[0]) == free
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.at); i++ {
		if gap := w.at[i].Sub(w.at[i-1]); gap < times.Write*9/10 {
			t.Errorf("two writes %v apart", gap)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked > 2*len(w.at)+4 {
		t.Errorf("%d requests to the enforcer for %d writes", e.asked, len(w.at))
	}
}

func TestPodsThatStartAndEndChangeTheOrderAndThatIsWrittenLessOften(t *testing.T) {
	e := &enforcer{host: Host{Devices: []api.Device{device(uuid0, 0, gib), device(uuid1, 1, 2*gib)}}}
	times := Times{Poll: time.Minute, Write: 50 * time.Millisecond, Order: time.Second, Timeout: time.Second}
	w := start(t, e, times, nil)
	eventually(t, "the devices are published", func() bool { _, count := w.last(); return count == 1 })
	begin := time.Now()
	claim := uint64(0) // of the second device, which has three times as much as the first
	for time.Since(begin) < 2500*time.Millisecond {
		claim = 3*gib - claim // none, or all but less than the first has
		e.change(func() {
			e.host.Devices = []api.Device{device(uuid0, 0, gib), device(uuid1, 1, 3*gib+1<<20-claim)}
			e.host.Devices[1].Pools = map[string]uint64{PoolPrefix + "a-0": claim}
		})
		e.events <- api.Event{Kind: api.EventPoolCreated}
		time.Sleep(7 * time.Millisecond)
	}
	_, count := w.last()
	if most := 2 + int(time.Since(begin)/times.Order) + 1; count > most { // at the start, and that the second has a GiB more
		t.Errorf("%d writes: at most %d", count, most)
	}
	e.mu.Lock()
	asked, most := e.asked, 2*int(time.Since(begin)/times.Write)+10 // each second answer is what was written
	e.mu.Unlock()
	if asked > most {
		t.Errorf("%d requests to the enforcer, want at most %d", asked, most)
	}
	var checks []api.Check
	taint := func() time.Duration {
		if checks = append(checks, api.Check{Name: "truth", For: api.ForReady}); len(checks) > 1 {
			checks = nil
		}
		e.change(func() { e.host.Health.Checks = checks })
		changed := time.Now()
		e.events <- api.Event{Kind: api.EventChanged}
		eventually(t, "a change beyond the order is written", func() bool {
			devices, _ := w.last()
			return len(devices) == 2 && len(devices[0].Taints) == len(checks)
		})
		return time.Since(changed)
	}
	await.Once(t, "a change of taints is written sooner than one of the order", times.Order*3/4, func() time.Duration {
		taint() // the interval begins with a write
		return taint()
	})
}

func TestAWriteThatFailsIsMadeAgain(t *testing.T) {
	e := &enforcer{host: Host{Devices: []api.Device{device(uuid0, 0, gib)}}}
	w := start(t, e, quick, nil)
	w.mu.Lock()
	w.err = errors.New("no")
	w.mu.Unlock()
	e.change(func() { e.host.Devices[0] = device(uuid0, 0, 2*gib) })
	_, before := w.last()
	eventually(t, "the failed attempt is repeated", func() bool { _, count := w.last(); return count > before+2 })
}

func TestConcurrentReadersShareOneRequest(t *testing.T) {
	e := &enforcer{host: Host{Devices: []api.Device{device(uuid0, 0, gib)}, Pools: []api.Pool{pool(PoolPrefix+"a-0", gib)}}}
	w := start(t, e, Times{Poll: 5 * time.Millisecond, Timeout: 20 * time.Millisecond}, nil)
	heard := func(more int) func() bool {
		return func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.heard) > more
		}
	}
	eventually(t, "its answers arrive", heard(10))
	w.mu.Lock()
	h := w.heard[10]
	w.mu.Unlock()
	if h.Driver != "1.2.3" || len(h.Devices) != 1 || len(h.Pools) != 1 {
		t.Errorf("heard %+v", h)
	}
	e.mu.Lock()
	if once := 1 + 2; e.others > 2*e.asked+once { // devices and pools for each; once its instance, and an answer under way
		t.Errorf("%d other questions beside %d for health", e.others, e.asked)
	}
	e.driver = "2.0"
	e.mu.Unlock()
	e.end <- struct{}{}
	eventually(t, "the driver's version is read again after the enforcer was replaced", func() bool {
		devices, _ := w.last()
		return len(devices) == 1 && *devices[0].Attributes["driverVersion"].VersionValue == "2.0.0"
	})
}
