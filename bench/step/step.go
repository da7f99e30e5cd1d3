// Package step measures whole training steps of the builtin models against PyTorch and
// JAX doing the same step: same shapes, same optimizer, clipping and schedule, in one
// run and in turns, so that what else the machine does hits all of them.
package step

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"reprise/frontend/nn"
	"reprise/internal/diag"
)

// Config is a step to be measured.
type Config struct {
	Name  string   // e.g. "gpt-dropout"
	Spec  string   // builtin model, without "builtin:"
	Steps int      // steps a turn
	Peers []string // contestants that can do it, see Peers
}

// Configs are the steps that are measured where nothing is asked for.
func Configs() []Config {
	all := []string{"torch", "torch-checkpoint", "torch-compile", "jax", "jax-checkpoint", "jax-barriers"}
	blocks := []string{"torch", "torch-checkpoint", "torch-compile"}
	torch := []string{"torch", "torch-compile"}
	return []Config{
		{"gpt-tiny", "gpt,layers=4,d=128,heads=4,seq=64,batch=12,dropout=0", 20, all},
		{"gpt", "gpt,dropout=0", 2, all},
		{"gpt-dropout", "gpt", 2, all},
		{"gpt2-124m", "gpt2-124m", 2, all},
		{"llama-tiny", "llama,layers=4,d=128,heads=4,kv_heads=2,seq=64,batch=12", 20, blocks},
		{"moe", "moe", 20, torch},
		{"resnet", "resnet", 10, blocks},
		{"cnn", "cnn", 20, torch},
		{"lstm", "lstm", 20, torch},
		{"mlp", "mlp", 50, torch},
	}
}

// Peers names the contestants beside ours, with the script and mode of each.
func Peers() []string {
	return []string{"torch", "torch-checkpoint", "torch-compile", "jax", "jax-checkpoint", "jax-barriers"}
}

// Options of a run.
type Options struct {
	Configs []Config // nil: all
	Peers   []string // nil: torch and jax; empty and not nil: none
	Budgets []string // of our programs; nil: 100%
	Rounds  int      // turns of each contestant; 0: 5
	Threads int      // 0: all processors

	// Compile makes a training executable of MODEL (builtin:…) at a budget.
	Compile func(ctx context.Context, model, budget, out string) error

	PeersDir string    // bench/peers
	Results  string    // directory for step.json and step.md; "": nothing is written
	Log      io.Writer // progress; nil: none
}

// Row is the result of one contestant in one configuration.
type Row struct {
	Config  string    `json:"config"`
	Who     string    `json:"who"`     // "reprise 100%", "torch", …
	Version string    `json:"version"` // of the peer
	MS      []float64 `json:"ms"`      // all measured steps, in order
	Median  float64   `json:"median_ms"`
	Best    float64   `json:"best_ms"`
	// Ratio is the median over the rounds of this contestant's median in the round,
	// divided by that of our first program in the same round: above 1 is slower than us.
	Ratio  float64 `json:"ratio"`
	Memory int64   `json:"memory_bytes"`
	// MemoryIs says what Memory counts: "arena" (ours: measured peak, equal to the promise),
	// "resident" (peak less the library's own), "xla" (temporaries and arguments).
	MemoryIs string  `json:"memory_is"`
	PeakRSS  int64   `json:"peak_rss_bytes,omitempty"` // of the whole process
	Params   int64   `json:"params,omitempty"`
	Start    float64 `json:"start_seconds"` // until the first step was done, compilation included
	Loss     float64 `json:"loss"`          // after the last measured step
	Refused  string  `json:"refused,omitempty"`

	rounds []float64
}

// Report is the result of a run.
type Report struct {
	CPU     string `json:"cpu"`
	Threads int    `json:"threads"`
	Rounds  int    `json:"rounds"`
	// Load is the machine's one-minute load average before the first program was started:
	// what else ran. Peers that wait for all their threads suffer most from it.
	Load float64 `json:"load"`
	Rows []*Row  `json:"rows"`
}

// contestant is a program that runs steps when told to.
type contestant interface {
	// turn runs n steps and gives their times in ms.
	turn(ctx context.Context, n int) ([]float64, error)
	close()
}

// Run measures. A peer that can't be started is a row that says why; our own failure is
// an error. Cancelling ctx stops all programs.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Configs == nil {
		o.Configs = Configs()
	}
	if o.Peers == nil {
		o.Peers = []string{"torch", "jax"}
	}
	if o.Budgets == nil {
		o.Budgets = []string{"100%"}
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	tmp, err := os.MkdirTemp("", "reprise-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	report := &Report{CPU: cpuName(), Threads: o.Threads, Rounds: o.Rounds, Load: load()}
	for _, c := range o.Configs {
		rows, err := measure(ctx, o, c, tmp)
		if err != nil {
			return nil, err
		}
		report.Rows = append(report.Rows, rows...)
		// What is done is kept even if a later configuration fails.
		if err := report.Write(o.Results); err != nil {
			return nil, err
		}
	}
	return report, nil
}

func measure(ctx context.Context, o Options, c Config, tmp string) ([]*Row, error) {
	use, err := nn.ParseBuiltin(c.Spec)
	if err != nil {
		return nil, err
	}
	var rows []*Row
	var field []contestant
	defer func() {
		for _, x := range field {
			if x != nil {
				x.close()
			}
		}
	}()
	for _, budget := range o.Budgets {
		fmt.Fprintf(o.Log, "%s: compiling at %s\n", c.Name, budget)
		start := time.Now()
		row := &Row{Config: c.Name, Who: "reprise " + budget, MemoryIs: "arena"}
		out := filepath.Join(tmp, strings.ReplaceAll(c.Name+"-"+budget, "%", "pct"))
		if err := o.Compile(ctx, "builtin:"+c.Spec, budget, out); err != nil {
			return nil, err
		}
		x := &ours{path: out, threads: o.Threads, row: row}
		if _, err := x.turn(ctx, 1); err != nil {
			return nil, err
		}
		row.Start = time.Since(start).Seconds()
		rows, field = append(rows, row), append(field, x)
	}
	for _, name := range c.Peers {
		if !slices.Contains(o.Peers, name) {
			continue
		}
		fmt.Fprintf(o.Log, "%s: starting %s\n", c.Name, name)
		row := &Row{Config: c.Name, Who: name}
		start := time.Now()
		x, err := startPeer(ctx, o, name, use, row)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rows, field = append(rows, row), append(field, x)
		if err != nil {
			row.Refused = err.Error()
			field[len(field)-1] = nil
			continue
		}
		row.Start = time.Since(start).Seconds()
	}
	for round := range o.Rounds {
		for i, x := range field {
			if x == nil {
				continue
			}
			ms, err := x.turn(ctx, c.Steps)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.Name, rows[i].Who, err)
			}
			rows[i].MS = append(rows[i].MS, ms...)
			rows[i].rounds = append(rows[i].rounds, median(ms))
			fmt.Fprintf(o.Log, "%s round %d/%d: %-18s %8.1f ms\n", c.Name, round+1, o.Rounds, rows[i].Who, median(ms))
			// Threads of the one that just stopped may still spin for a moment.
			time.Sleep(100 * time.Millisecond)
		}
	}
	for _, r := range rows {
		r.Median = median(r.MS)
		if len(r.MS) > 0 {
			r.Best = slices.Min(r.MS)
		}
		var ratios []float64
		for k := range r.rounds {
			ratios = append(ratios, r.rounds[k]/rows[0].rounds[k])
		}
		r.Ratio = median(ratios)
	}
	return rows, nil
}

// ours runs a compiled executable anew for every turn; the first step, which touches the
// memory for the first time, is not counted.
type ours struct {
	path    string
	threads int
	row     *Row
}

func (x *ours) turn(ctx context.Context, n int) ([]float64, error) {
	cmd := exec.CommandContext(ctx, x.path, "--steps", fmt.Sprint(n+1), "--threads", fmt.Sprint(x.threads), "--json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("compiled program: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var ms []float64
	for line := range strings.Lines(string(out)) {
		var l struct {
			Step     *int64
			Loss, MS float64
			Done     bool
			Arena    int64 `json:"arena_bytes"`
			PeakRSS  int64 `json:"peak_rss_bytes"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, fmt.Errorf("compiled program printed %q: %w", line, err)
		}
		switch {
		case l.Done:
			x.row.Memory, x.row.PeakRSS = l.Arena, l.PeakRSS
		case l.Step != nil:
			ms = append(ms, l.MS)
			x.row.Loss = l.Loss
		}
	}
	if len(ms) != n+1 {
		return nil, fmt.Errorf("compiled program ran %d steps of %d", len(ms), n+1)
	}
	return ms[1:], nil
}

func (x *ours) close() {}

// peer is a Python program that waits for its turn.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	row *Row
}

// reply is what a peer says.
type reply struct {
	Ready     bool      `json:"ready"`
	Name      string    `json:"name"`
	MS        []float64 `json:"ms"`
	Loss      float64   `json:"loss"`
	Params    int64     `json:"params"`
	StepBytes int64     `json:"step_bytes"`
	PeakRSS   int64     `json:"peak_rss_bytes"`
	Temp      int64     `json:"temp_bytes"`
	Arguments int64     `json:"argument_bytes"`
}

func startPeer(ctx context.Context, o Options, name string, use *nn.Use, row *Row) (contestant, error) {
	lib, mode, _ := strings.Cut(name, "-")
	python, err := filepath.Abs(filepath.Join(o.PeersDir, ".venv", "bin", "python"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(python); err != nil {
		return nil, diag.Errorf("peers", "the peers' environment is missing").WithHint("make it with bench/peers/setup.sh")
	}
	arg, err := json.Marshal(peerArg(use, mode, o.Threads))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, "step_"+lib+".py", string(arg))
	cmd.Dir = o.PeersDir
	var stderr tail
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &peer{cmd, in, bufio.NewReader(out), row}
	r, err := p.read()
	if err != nil || !r.Ready {
		p.close()
		return nil, fmt.Errorf("%s did not start: %s", name, stderr.last())
	}
	row.Version, row.Params = r.Name, r.Params
	row.MemoryIs = "resident"
	if r.Temp > 0 {
		row.Memory, row.MemoryIs = r.Temp+r.Arguments, "xla"
	}
	return p, nil
}

// peerArg is what a peer is told: the model's own settings and those of its training.
func peerArg(use *nn.Use, mode string, threads int) map[string]any {
	arg := map[string]any{"model": use.Builtin.Name, "threads": threads}
	if mode != "" {
		arg["mode"] = mode
	}
	if use.Builtin.Name == "gpt2-124m" {
		arg["model"] = "gpt"
	}
	for _, o := range use.Builtin.Options {
		switch o.Kind {
		case "int":
			arg[o.Name] = use.Values.Int(o.Name)
		case "float":
			arg[o.Name] = use.Values.Float(o.Name)
		default:
			arg[o.Name] = use.Values.Word(o.Name)
		}
	}
	if use.Builtin.Name == "llama" {
		arg["hidden"] = nn.HiddenOf(use.Values)
	}
	return arg
}

func (p *peer) read() (*reply, error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	r := &reply{}
	return r, json.Unmarshal(line, r)
}

func (p *peer) turn(_ context.Context, n int) ([]float64, error) {
	if _, err := fmt.Fprintln(p.in, n); err != nil {
		return nil, err
	}
	r, err := p.read()
	if err != nil {
		return nil, err
	}
	p.row.Loss, p.row.PeakRSS = r.Loss, r.PeakRSS
	if p.row.MemoryIs == "resident" {
		p.row.Memory = r.StepBytes
	}
	if len(r.MS) != n {
		return nil, fmt.Errorf("peer ran %d steps of %d", len(r.MS), n)
	}
	return r.MS, nil
}

func (p *peer) close() {
	p.in.Close() // ends the conversation
	done := make(chan struct{})
	go func() { p.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		<-done
	}
}

// tail keeps the end of what a program says on stderr.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 8192 {
		t.b = t.b[len(t.b)-8192:]
	}
	return len(p), nil
}

// last is the last line that says something.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return lines[len(lines)-1]
}

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// cpuName is the processor's name, for the report.
func cpuName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

// load is the one-minute load average, 0 where the system does not tell.
func load() float64 {
	var x float64
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Sscan(string(data), &x)
	}
	return x
}

// Write puts step.json and step.md into dir; "" writes nothing.
func (r *Report) Write(dir string) error {
	if dir == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "step.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "step.md"), []byte(r.Markdown()), 0o644))
}

// Markdown is the report as a table for people.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "One training step, f32, %d threads, %s. Median of %d turns, contestants alternating in one run;\n", r.Threads, r.CPU, r.Rounds)
	b.WriteString("\"time\" is relative to our first program in the same turn (above 1: slower than it).\n")
	fmt.Fprintf(&b, "Load average of the machine at the start: %.1f.", r.Load)
	if r.Load > 0.5 {
		b.WriteString(" **Other programs were running, so these figures mean little.**")
	}
	b.WriteString("\n\n| model | program | ms | best | time | memory, MiB | counted as | start, s |\n|---|---|--:|--:|--:|--:|---|--:|\n")
	for _, row := range r.Rows {
		who := row.Who
		if row.Version != "" {
			who = row.Version
		}
		if row.Refused != "" {
			fmt.Fprintf(&b, "| %s | %s | – | – | – | – | %s | – |\n", row.Config, who, strings.ReplaceAll(row.Refused, "\n", " "))
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f | %.1f | %.2f | %.0f | %s | %.1f |\n",
			row.Config, who, row.Median, row.Best, row.Ratio, float64(row.Memory)/(1<<20), row.MemoryIs, row.Start)
	}
	return b.String()
}
