// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/must"
)

// BenchmarkContainerStart starts and removes a container without hooks, with the hooks in config.json, and with
// gpuslice-runtime. It alternates between them, so that other load affects all. Run it with -benchtime 50x.
func BenchmarkContainerStart(b *testing.B) {
	requires(b, "runc")
	e := startEnforcer(b)
	timing := filepath.Join(e.dir, "timing")
	h := hooks(b, e, "prestart")
	entry := h["prestart"].([]object)[0]
	entry["args"] = []string{"gpuslice-hook", "--config", e.config, "--timing", timing, "prestart"}

	mkdir(b, e.dir+"/root")
	ways := []string{"bare", "hooks", "runtime"}
	start, remove := make(map[string][]time.Duration), make(map[string][]time.Duration)
	for b.Loop() {
		for _, way := range ways {
			name := fmt.Sprint("bench-", way, os.Getpid())
			var bundle *bundle
			switch way {
			case "hooks":
				bundle = newBundle(b, name, fourGiB, h)
			default:
				bundle = newBundle(b, name, fourGiB, nil)
			}
			c := &container{t: b, id: name, b: bundle, program: "runc", root: e.dir + "/root"}
			if way == "runtime" {
				ours(b, e, c)
			}
			begin := time.Now()
			c.start()
			start[way] = append(start[way], time.Since(begin))
			must.Get(c.run("kill", c.id, "KILL"))(b)
			waitStopped(b, c)
			begin = time.Now()
			c.remove()
			remove[way] = append(remove[way], time.Since(begin))
			os.RemoveAll(bundle.dir)
		}
	}
	bare := median(start["bare"]) + median(remove["bare"])
	for _, way := range ways {
		s, r := median(start[way]), median(remove[way])
		b.ReportMetric(float64(s.Microseconds())/1000, "ms-start-"+way)
		b.ReportMetric(float64(r.Microseconds())/1000, "ms-remove-"+way)
		b.ReportMetric(float64(s+r)/float64(bare), "ratio-"+way)
	}
	for part, took := range parts(b, timing) {
		b.ReportMetric(float64(median(took).Microseconds()), "µs-prestart-"+part)
	}
}

// BenchmarkHookProgram measures a hook run without work.
func BenchmarkHookProgram(b *testing.B) {
	requires(b)
	e := startEnforcer(b)
	write(b, e.config, e.configText()+"[runtime]\nmissing = \"pass\"\n")
	bundle := newBundle(b, "bench", nil, nil)
	state := fmt.Sprintf(`{"id":"a","pid":2,"bundle":%q}`, bundle.dir)
	for b.Loop() {
		cmd := exec.Command(program(b, "gpuslice-hook"), "--config", e.config, "prestart")
		cmd.Stdin = strings.NewReader(state)
		must.Output(cmd.CombinedOutput())(b)
	}
}

func waitStopped(t testing.TB, c *container) {
	t.Helper()
	for range 500 {
		if out, _ := c.run("state", c.id); strings.Contains(out, `"status": "stopped"`) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it does not stop")
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func parts(t testing.TB, path string) map[string][]time.Duration {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	all := make(map[string][]time.Duration)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var part string
		var us int
		must.Get(fmt.Sscan(lines.Text(), &part, &us))(t)
		all[part] = append(all[part], time.Duration(us)*time.Microsecond)
	}
	return all
}
