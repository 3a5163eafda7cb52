//go:build prometheus

// SPDX-License-Identifier: Apache-2.0

// Package prometheus tests the Prometheus and Grafana files of configs/: it runs the rules' own tests, and evaluates every
// expression of rules and dashboard in a real Prometheus that scrapes a private enforcer.
package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	rulesFile     = "../../configs/prometheus/alerts.yml"
	scrapeFile    = "../../configs/prometheus/prometheus.yml"
	dashboardFile = "../../configs/grafana/gpuslice.json"
	metricsTable  = "../../docs/operate/metrics.md"
)

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s: test/deps.sh --ci", name)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

type server struct {
	t   *testing.T
	url string
	log testhost.Output
}

// startServer starts a Prometheus with those rules that scrapes target twice a second.
func startServer(t *testing.T, target, rules string) *server {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nscrape_configs:\n  - job_name: gpuslice\n    static_configs: [{targets: [%q]}]\nrule_files: [%q]\n", target, rules)
	file := filepath.Join(dir, "prometheus.yml")
	must.Do(t, os.WriteFile(file, []byte(config), 0o600))
	address := freeAddress(t)
	s := &server{t: t, url: "http://" + address}
	cmd := exec.Command(program(t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("what Prometheus said:\n%s", s.log.String())
		}
	})
	eventually(t, "Prometheus is ready", func() bool {
		r, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return s
}

type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"` // the time, and the value as a string
}

func (s *server) query(expression string) ([]sample, error) {
	r, err := http.Get(s.url + "/api/v1/query?" + url.Values{"query": {expression}}.Encode())
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s", answer.Error)
	}
	var found []sample
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("it is a %s", answer.Data.ResultType)
	}
	return found, json.Unmarshal(answer.Data.Result, &found)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	await.That(t, what, is)
}

// host starts an enforcer with metrics at the returned address and extra environment.
func host(t *testing.T, env ...string) (h *testhost.Host, address string) {
	t.Helper()
	address = freeAddress(t)
	return testhost.New(t, testhost.Options{
		Env:      env,
		Enforcer: fmt.Sprintf("metrics_address = %q\ntruth_interval = \"200ms\"\n\n[tenants.default]\nmax_vram = \"90%%\"\n", address),
	}), address
}

// session runs a shell script in a session until the test ends; $HOG allocates memory.
func session(h *testhost.Host, script string, flags ...string) {
	h.T.Helper()
	words := append([]string{"--socket", h.Socket(), "run", "--quiet"}, flags...)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(h.Bin, "gpuslice"), append(words, "--", "sh", "-c", script)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(h.Env(), "HOG="+filepath.Join(h.Bin, "demo", "cuda_hog"))
	var said testhost.Output
	cmd.Stdout, cmd.Stderr = &said, &said
	h.Must(cmd.Start())
	h.T.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // and the script's children
		if h.T.Failed() {
			h.T.Logf("the session %q said: %.2000s", script, said.String())
		}
	})
}

func cli(h *testhost.Host, words ...string) {
	h.T.Helper()
	out, err := exec.Command(filepath.Join(h.Bin, "gpuslice"), append([]string{"--socket", h.Socket()}, words...)...).CombinedOutput()
	if err != nil {
		h.T.Fatalf("gpuslice %s: %v: %s", strings.Join(words, " "), err, out)
	}
}
