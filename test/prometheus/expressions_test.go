//go:build prometheus

// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func loadRules(t *testing.T) rules {
	t.Helper()
	var r rules
	text, err := os.ReadFile(rulesFile)
	if err == nil {
		err = yaml.Unmarshal(text, &r)
	}
	if err != nil || len(r.Groups) == 0 {
		t.Fatalf("%s: %v", rulesFile, err)
	}
	return r
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ X, Y, W, H int }
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
}

type dashboard struct {
	UID        string  `json:"uid"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name, Type, Definition string
		} `json:"list"`
	} `json:"templating"`
}

func loadDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil || len(d.Panels) == 0 {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

func concrete(expr string) string {
	return strings.NewReplacer("$instance", ".*", "$slice", ".*", "$__rate_interval", "10s").Replace(expr)
}

func documented(t *testing.T) map[string][]string {
	t.Helper()
	text := must.Get(os.ReadFile(metricsTable))(t)
	found := make(map[string][]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([a-z_, ]*) \\|").FindAllStringSubmatch(string(text), -1) {
		names := []string{row[1]}
		labels := strings.FieldsFunc(row[3], func(r rune) bool { return r == ',' || r == ' ' })
		if row[2] == "histogram" {
			names = []string{row[1] + "_bucket", row[1] + "_sum", row[1] + "_count"}
			labels = append(labels, "le")
		}
		for _, name := range names {
			found[name] = append(labels, "instance", "job")
		}
	}
	must.True(t, len(found) >= 30, metricsTable, "has metrics:", len(found))
	return found
}

var (
	quotedText = regexp.MustCompile(`"[^"]*"`)
	identifier = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
	labelLists = regexp.MustCompile(`(?:by|on|group_left|group_right|ignoring|without) ?\(([^)]*)\)`)
	matchers   = regexp.MustCompile(`([a-z_]+) ?(?:=~|!~|!=|=) ?""`)
)

// checkNames reports unknown metrics and labels of an expression.
func checkNames(t *testing.T, where, expr string, known map[string][]string) {
	t.Helper()
	bare := quotedText.ReplaceAllString(concrete(expr), `""`)
	var labels []string
	metrics := 0
	for _, name := range identifier.FindAllString(bare, -1) {
		if name != "up" && !strings.HasPrefix(name, "gpuslice_") && !strings.HasPrefix(name, "process_") {
			continue
		}
		metrics++
		if name == "up" {
			labels = append(labels, "instance", "job")
		} else if known[name] == nil {
			t.Errorf("%s: there is no metric %s", where, name)
		}
		labels = append(labels, known[name]...)
	}
	expect.True(t, metrics != 0, where, "no metric is in", expr)
	var used []string
	for _, list := range labelLists.FindAllStringSubmatch(bare, -1) {
		used = append(used, identifier.FindAllString(list[1], -1)...)
	}
	for _, m := range matchers.FindAllStringSubmatch(bare, -1) {
		used = append(used, m[1])
	}
	for _, label := range used {
		expect.True(t, slices.Contains(labels, label), where, "no metric of it has the label", label, expr)
	}
}

func TestTheRulesKeepTheirOwnTests(t *testing.T) {
	promtool := program(t, "promtool")
	for _, words := range [][]string{{"check", "config", scrapeFile}, {"check", "rules", rulesFile}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := exec.Command(promtool, words...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(words, " "), err, out)
		}
	}
}

var recorded = regexp.MustCompile("(?s)```yaml\n(groups:\n.*?)```")

func TestTheRulesForDashboardsOfGsliceMakeItsSeries(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/use/coming-from.md"))(t)
	rules := recorded.FindSubmatch(page)
	must.True(t, rules != nil, "the page has no rules")
	tests := must.Get(os.ReadFile("gslice_test.yml"))(t)
	dir := t.TempDir()
	for name, text := range map[string][]byte{"gslice.yml": rules[1], "gslice_test.yml": tests} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	must.Output(exec.Command(program(t, "promtool"), "test", "rules", filepath.Join(dir, "gslice_test.yml")).CombinedOutput())(t)
}

func TestEachAlertIsTestedAndSaysWhatToDo(t *testing.T) {
	text := must.Get(os.ReadFile("alerts_test.yml"))(t)
	for _, group := range loadRules(t).Groups {
		for _, r := range group.Rules {
			expect.Contains(t, string(text), "alertname: "+r.Alert+"\n        exp_alerts:", r.Alert, "fires in no test")
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) {
				t.Errorf("%s: %+v, %+v", r.Alert, r.Labels, r.Annotations)
			}
		}
	}
}

func TestTheDashboardsPanelsHaveTheirPlaces(t *testing.T) {
	d := loadDashboard(t)
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || (p.Type != "row" && len(p.Targets) == 0) {
			t.Errorf("panel %d, %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			expect.True(t, !refs[target.RefID], p.Title, "two queries are", target.RefID)
			refs[target.RefID] = true
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; x >= 24 || other != "" {
					t.Fatalf("%q and %q are at %d, %d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// emptyIsGood lists panels that are empty on a healthy host.
var emptyIsGood = []string{"Past the ledger"}

func TestEachExpressionIsAnsweredByARealPrometheus(t *testing.T) {
	h, address := host(t)
	absolute := must.Get(filepath.Abs(rulesFile))(h.T)
	s := startServer(t, address, absolute)
	known := documented(t)

	// The workload covers a slice with frequent refusals, one with killed processes, one in a pool, and short sessions.
	cli(h, "pool", "create", "llm", "--vram", "4G")
	session(h, `$HOG 1073741824 & while :; do $HOG 4294967296 >/dev/null; sleep .2; done`, "--vram", "2G")
	session(h, `while :; do $HOG 1073741824 >/dev/null & sleep .3; kill -9 $!; wait; done`, "--vram", "2G")
	session(h, `$HOG 1073741824 & while :; do $HOG 4294967296 >/dev/null; sleep .2; done`, "--pool", "llm")
	h.Eventually("three slices hold something", func() bool { return len(h.Slices()) == 3 })

	answered := func(where, expr string, empty bool) {
		t.Helper()
		checkNames(t, where, expr, known)
		var found []sample
		var err error
		eventually(t, where+" is answered: "+expr, func() bool {
			found, err = s.query(concrete(expr))
			return err != nil || empty || len(found) > 0
		})
		expect.NoError(t, err, where, expr)
		for _, f := range found {
			if f.Value[1] == "NaN" {
				t.Logf("%s: %s is not a number for %v", where, expr, f.Metric)
			}
		}
	}
	h.Must(func() error { _, err := s.query("up"); return err }())
	d := loadDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			answered(p.Title, target.Expr, slices.Contains(emptyIsGood, p.Title))
		}
	}
	for _, v := range d.Templating.List {
		if inner, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			i := strings.LastIndex(inner, ",")
			answered("variable "+v.Name, "count by ("+strings.TrimSpace(strings.TrimSuffix(inner[i+1:], ")"))+") ("+inner[:i]+")", false)
		}
	}
	for _, group := range loadRules(t).Groups {
		for _, r := range group.Rules {
			answered(r.Alert, r.Expr, true)
		}
	}
	// The scraped metrics must equal the documented ones.
	for _, n := range must.Get(s.query(`count by (__name__) ({job="gpuslice"})`))(h.T) {
		name := n.Metric["__name__"]
		if known[name] == nil && name != "up" && !strings.HasPrefix(name, "scrape_") {
			t.Errorf("%s is not in %s", name, metricsTable)
		}
	}
}

// quick returns the rules with shorter durations.
func quick(t *testing.T) string {
	t.Helper()
	text := must.Get(os.ReadFile(rulesFile))(t)
	short := regexp.MustCompile(`for: \d+m`).ReplaceAllString(string(text), "for: 0s")
	short = strings.Replace(short, "gpuslice_truth_age_seconds > 60", "gpuslice_truth_age_seconds > 5", 1)
	file := filepath.Join(t.TempDir(), "alerts.yml")
	must.Do(t, os.WriteFile(file, []byte(short), 0o600))
	return file
}

func (s *server) fires(alert string) bool {
	found := must.Get(s.query(`ALERTS{alertstate="firing", alertname="` + alert + `"}`))(s.t)
	return len(found) > 0
}

func TestOnlyAFailingHostRaisesAlerts(t *testing.T) {
	h, address := host(t)
	s := startServer(t, address, quick(t))
	session(h, `$HOG 1073741824`, "--vram", "2G")
	up := func(value string) func() bool {
		return func() bool {
			found, err := s.query(`up{job="gpuslice"}`)
			return err == nil && len(found) == 1 && found[0].Value[1] == value
		}
	}
	eventually(t, "it is scraped", up("1"))
	eventually(t, "the slice is seen", func() bool {
		found, err := s.query("gpuslice_slice_used_bytes")
		return err == nil && len(found) == 1 && found[0].Value[1] == "1073741824"
	})
	eventually(t, "no alert fires", func() bool { // one does while the machine stands still
		return up("1")() && len(must.Get(s.query(`ALERTS{alertstate="firing"}`))(t)) == 0
	})
	h.Stop(unix.SIGKILL)
	eventually(t, "it is down", func() bool { return up("0")() && s.fires("GpusliceDown") })
	h.Start()
	eventually(t, "it is up again", func() bool { return up("1")() && !s.fires("GpusliceDown") })
}

// A hanging driver would hang for a restarted enforcer, too: an alert fires, and nothing is restarted.
func TestHungDriverRaisesAnAlertWithoutARestart(t *testing.T) {
	fault := filepath.Join(t.TempDir(), "fault")
	h, address := host(t, "FAKECUDA_NVML_FAULT="+fault)
	s := startServer(t, address, quick(t))
	session(h, `$HOG 1073741824`, "--vram", "2G")
	value := func(expr string) func(want string) bool {
		return func(want string) bool {
			found, err := s.query(expr)
			return err == nil && len(found) == 1 && found[0].Value[1] == want
		}
	}
	eventually(t, "the driver answers", func() bool { return value("gpuslice_truth_age_seconds < bool 1")("1") })
	h.Must(os.WriteFile(fault, []byte("hang"), 0o600))
	eventually(t, "somebody is told", func() bool { return s.fires("GpusliceTruthIsOld") })
	for _, expr := range []string{"gpuslice_live", "gpuslice_ready", `up{job="gpuslice"}`} {
		eventually(t, expr+" is 1 while the driver hangs", func() bool { return value(expr)("1") })
	}
	// Slices can still be created and ended.
	if out, err := h.Client.Health(t.Context()); err != nil || !out.Live || !out.Ready {
		t.Errorf("%+v, %v", out, err)
	}
	session(h, "sleep 600", "--vram", "1G")
	h.Eventually("a slice is given", func() bool { return len(h.Slices()) == 2 })
	h.Must(os.Remove(fault))
	eventually(t, "the driver answers again", func() bool {
		return value("gpuslice_truth_age_seconds < bool 1")("1") && !s.fires("GpusliceTruthIsOld")
	})
}
