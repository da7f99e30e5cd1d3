package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir/kern/scalar"
	"reprise/runtime"
)

// The demo's model: builtin:gpt as it is, 6 layers of width 384 over 256 bytes of context.
const demoModel = "builtin:gpt"

// demoTime is how long the three training runs may take together.
const demoTime = 170 * time.Second

// demoText bounds the bytes of text to train on.
const demoText = 8 << 20

func (a *app) demoCmd() *cobra.Command {
	var steps int
	var f modelFlags
	cmd := &cobra.Command{
		Use: "demo", Short: "Compile a GPT at three budgets, train it on the Go library's source, compare, generate",
		Example: "  reprise demo", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), steps, &f) },
	}
	cmd.Flags().IntVar(&steps, "steps", 0, "training steps of each program; 0: as many as fit in five minutes")
	f.registerPolicy(cmd)
	return cmd
}

// demoRun is one row of the demo's table.
type demoRun struct {
	Budget       string  `json:"budget"`
	Promised     int64   `json:"promised_bytes"`
	Measured     int64   `json:"measured_bytes"`
	Overhead     float64 `json:"overhead"`
	OverheadRun  float64 `json:"overhead_measured"`
	Gap          float64 `json:"gap"`
	TokensPerSec float64 `json:"tokens_per_s"`
	Steps        int     `json:"steps"`
	Loss         float64 `json:"loss"`
	LossBits     string  `json:"loss_bits"`
	State        string  `json:"state_sha256"`

	bin     string
	weights string    // file of its state between turns
	steps   []float64 // milliseconds of each, but the first of each turn, which touches everything for the first time
	ms      float64   // median of those
}

// demoTurns: the programs train by turns, each going on from its file, so that a machine that is slower for a while is
// so for all of them.
const demoTurns = 3

// demo runs the model at three budgets, and under a policy if one is given.
func (a *app) demo(ctx context.Context, steps int, given *modelFlags) error {
	dir, clean, err := tempDir()
	if err != nil {
		return err
	}
	defer clean()
	say := func(format string, args ...any) {
		if !a.json {
			fmt.Fprintf(a.out, format, args...)
		}
	}
	text := filepath.Join(dir, "text")
	n, err := goSource(ctx, text)
	if err != nil {
		return err
	}
	say("%s of Go source to train on; the model is %s with dropout, AdamW, clipping.\n", compile.Bytes(n), demoModel)
	var runs []*demoRun
	budgets := []string{"100%", "50%", "min"}
	if given.policy != "" || given.rules != nil {
		budgets = append(budgets, "policy")
	}
	for _, b := range budgets {
		f := modelFlags{budget: b, target: "cpu", train: true}
		if b == "policy" {
			f.budget, f.policy, f.rules, f.allowUnmatched = "", given.policy, given.rules, given.allowUnmatched
		}
		opt, err := f.options()
		if err != nil {
			return err
		}
		opt.NoMinimum = b != "min"
		m, err := f.load(demoModel)
		if err != nil {
			return err
		}
		bin := filepath.Join(dir, "gpt-"+strings.TrimSuffix(b, "%"))
		p, err := a.make(ctx, m, opt, bin)
		if err != nil {
			return err
		}
		r := &demoRun{Budget: b, Promised: p.Report.PromisedPeakBytes, Overhead: p.Report.Overhead, Gap: p.Report.Gap, bin: bin, weights: bin + ".safetensors"}
		a.warn(p.Report)
		if b == "policy" {
			say("compiled under the policy: %s, in %.1f s\n%s", compile.Bytes(r.Promised), p.Report.CompileSeconds, p.Report.Policy)
		} else {
			say("compiled for %-5s of what keeping everything takes: %s, in %.1f s\n", b, compile.Bytes(r.Promised), p.Report.CompileSeconds)
		}
		runs = append(runs, r)
	}
	if steps == 0 {
		if steps, err = affordable(ctx, runs, text); err != nil {
			return err
		}
	}
	say("training each for %d steps, by turns\n", steps)
	turns := min(demoTurns, steps)
	for k := range turns {
		for _, r := range runs {
			if err := r.train(ctx, text, steps*(k+1)/turns-steps*k/turns); err != nil {
				return err
			}
		}
	}
	weights := runs[len(runs)-1].weights
	for _, r := range runs {
		r.OverheadRun = r.ms/runs[0].ms - 1
	}
	same := true
	for _, r := range runs {
		same = same && r.LossBits == runs[0].LossBits && r.State == runs[0].State
	}
	sample, err := a.generate(ctx, dir, weights)
	if err != nil {
		return err
	}
	if a.json {
		a.print(map[string]any{"runs": runs, "same_bits": same, "text": sample})
	} else {
		a.table(runs, same, steps)
		fmt.Fprintf(a.out, "\nAn inference program compiled from the same model, with the weights just trained, goes on after \"func \":\n\n%s\n", indent(sample))
		fmt.Fprint(a.out, `
Next, try:
  bin/reprise explain builtin:gpt --train --budget 50%     what is kept, what is computed again, and why
  bin/reprise verify builtin:gpt,layers=2,d=64,heads=2,seq=32,batch=2 --budget min
  bin/reprise train builtin:llama --data FILE --steps 100 --budget 60%
`)
	}
	if !same {
		return diag.Errorf("verify", "the programs computed different bits").WithHint("this must not happen: report it with the output of reprise doctor")
	}
	return nil
}

func (a *app) table(runs []*demoRun, same bool, steps int) {
	fmt.Fprintln(a.out)
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "BUDGET\tPROMISED\tMEASURED\tOVERHEAD\tMEASURED\tPROVEN GAP\tTOKENS/S\tLOSS AFTER %d\tLOSS BITS\tSTATE\n", steps)
	for _, r := range runs {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f %%\t%.1f %%\t%.1f %%\t%.0f\t%.5f\t%s\t%s\n", r.Budget, r.Promised, r.Measured,
			100*r.Overhead, 100*r.OverheadRun, 100*r.Gap, r.TokensPerSec, r.Loss, r.LossBits, r.State[:16])
	}
	_ = w.Flush()
	if same {
		fmt.Fprintln(a.out, "\nLoss bits and state are equal in all rows: the budget changed the memory, not the result.")
	} else {
		fmt.Fprintln(a.out, "\nLoss bits or state DIFFER between rows.")
	}
}

// train runs the program for so many steps more, and takes what it measured.
func (r *demoRun) train(ctx context.Context, text string, steps int) error {
	list := []string{"--data", text, "--steps", fmt.Sprint(steps), "--save", r.weights}
	if r.Steps > 0 {
		list = append(list, "--resume", r.weights)
	}
	first := true
	done, err := runtime.Run(ctx, r.bin, list, func(s runtime.Step) {
		if !first || steps == 1 {
			r.steps = append(r.steps, s.MS)
		}
		first = false
		r.Loss, r.LossBits = s.Loss, s.LossBits
	})
	if err != nil {
		return err
	}
	ms := slices.Sorted(slices.Values(r.steps))
	r.ms = ms[len(ms)/2]
	before := float64(r.Steps)
	r.Steps += steps
	r.TokensPerSec = (r.TokensPerSec*before + done.TokensPerSec*float64(steps)) / float64(r.Steps)
	r.State = done.StateSHA256
	r.Measured = max(r.Measured, done.PeakRSSBytes-done.OtherRSSBytes)
	return nil
}

// affordable is the number of steps for which all runs fit in demoTime.
func affordable(ctx context.Context, runs []*demoRun, text string) (int, error) {
	probe := *runs[0]
	probe.weights += ".probe"
	if err := probe.train(ctx, text, 2); err != nil {
		return 0, err
	}
	total := 0.0
	for _, r := range runs {
		total += probe.ms * (1 + r.Overhead)
	}
	return max(3, min(100, int(float64(demoTime.Milliseconds())/total))), nil
}

// goSource writes source text of the installed Go library to a file.
func goSource(ctx context.Context, to string) (int64, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return 0, diag.Errorf("data", "go env GOROOT failed: %v", err).WithHint("the demo trains on the source of the installed Go library: put go in PATH")
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	f, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var n int64
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "vendor" || d.Name() == "cmd"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(d.Name(), "tables"):
			return nil
		case n >= demoText:
			return fs.SkipAll
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n += int64(len(data))
		_, err = f.Write(data)
		return err
	})
	if err == nil && n < 1<<16 {
		err = errors.New("almost no source text there")
	}
	if err != nil {
		return 0, diag.Errorf("data", "reading the Go library in %s: %v", root, err).WithHint("install Go with its source")
	}
	return n, f.Close()
}

// generate compiles the inference program and continues a prompt, byte by byte.
func (a *app) generate(ctx context.Context, dir, weights string) (string, error) {
	f := modelFlags{target: "cpu"}
	m, err := f.load(demoModel + ",batch=1,predict=next")
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "generate.so")
	if _, err := a.make(ctx, m, compile.Options{NoMinimum: true, Shared: true}, lib); err != nil {
		return "", err
	}
	i, err := runtime.Load(lib, runtime.Options{})
	if err != nil {
		return "", err
	}
	defer i.Close()
	if err := i.LoadWeights(weights); err != nil {
		return "", err
	}
	const length, prompt = 300, "func "
	seq := int(m.Module.Func("step").Param("tokens").Type.Shape[1])
	text := []byte(prompt)
	for k := range length {
		window := text[max(0, len(text)-seq):]
		tokens := make([]byte, 4*seq)
		for j, c := range window {
			tokens[4*j] = c
		}
		pos := uint32(len(window) - 1)
		if err := i.Bind("tokens", tokens); err != nil {
			return "", err
		}
		if err := i.Bind("position", []byte{byte(pos), byte(pos >> 8), byte(pos >> 16), byte(pos >> 24)}); err != nil {
			return "", err
		}
		if err := i.Step(); err != nil {
			return "", err
		}
		logits, err := i.Read("logits")
		if err != nil {
			return "", err
		}
		u := scalar.Philox4x32([4]uint32{uint32(k)}, [2]uint32{1, 0})[0]
		text = append(text, draw(logits, 0.7, float64(u)/(1<<32)))
	}
	return printable(text), nil
}

// draw takes a byte with the probabilities of f32 logits at a temperature; u is uniform in [0, 1).
func draw(logits []byte, temperature, u float64) byte {
	n := len(logits) / 4
	at := func(i int) float64 {
		b := uint32(logits[4*i]) | uint32(logits[4*i+1])<<8 | uint32(logits[4*i+2])<<16 | uint32(logits[4*i+3])<<24
		return float64(math.Float32frombits(b)) / temperature
	}
	most, sum := math.Inf(-1), 0.0
	for i := range n {
		most = max(most, at(i))
	}
	for i := range n {
		sum += math.Exp(at(i) - most)
	}
	for i := range n {
		if u -= math.Exp(at(i)-most) / sum; u < 0 {
			return byte(i)
		}
	}
	return byte(n - 1)
}

func printable(text []byte) string {
	var b strings.Builder
	for _, c := range text {
		if c == '\n' || c == '\t' || c >= 32 && c < 127 {
			b.WriteByte(c)
		} else {
			b.WriteByte('.')
		}
	}
	return b.String()
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }
