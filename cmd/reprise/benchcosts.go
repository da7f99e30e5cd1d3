package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"reprise/internal/compile"
	"reprise/internal/diag"
)

// costModels are profiled where nothing else is asked for.
const costModels = "gpt moe llama resnet cnn lstm qwen mixtral gpt,dtype=bf16 gpt2-124m"

// costRow is what a plan promises and what its program takes.
type costRow struct {
	Model    string         `json:"model"`
	Budget   string         `json:"budget"`
	Promised float64        `json:"promised_ms"`
	Measured float64        `json:"measured_ms"`
	More     [2]float64     `json:"overhead"` // promised and measured, against the model's first budget
	Kinds    []*costOfKinds `json:"kinds"`
}

// costOfKinds is one kind of kernel in a step.
type costOfKinds struct {
	Kind     string  `json:"kind"`
	Runs     int     `json:"runs"`
	Promised float64 `json:"promised_ms"`
	Measured float64 `json:"measured_ms"`
}

// profile is what a program says with --profile --json.
type profile struct {
	Rows []struct {
		Kernel, Layer string
		Run           float64 `json:"run_ms"`
		Wait          float64 `json:"wait_ms"`
		Calls         float64 `json:"calls"`
	} `json:"profile"`
	Step float64 `json:"ms_per_step"`
}

// benchCosts compiles models at budgets, profiles the programs in turns, and prints promised beside measured time. Of
// each kernel the least time of all turns counts, of a step likewise: what else the machine does only adds to it.
func (a *app) benchCosts(ctx context.Context, models []string, rounds int) error {
	if len(models) == 0 {
		models = strings.Fields(costModels)
	}
	dir, err := os.MkdirTemp("", "reprise-costs-")
	if err != nil {
		return diag.Errorf("io", "%v", err).WithHint("set TMPDIR to a directory with space")
	}
	defer os.RemoveAll(dir)
	var rows []*costRow
	for _, model := range models {
		var of []*costRow
		var bins []string
		var promised [][]compile.KernelCost
		for _, budget := range []string{"100%", "50%", "min"} {
			f := modelFlags{budget: budget, target: "cpu", train: true}
			opt, err := f.options()
			if err != nil {
				return err
			}
			opt.NoMinimum = budget != "min"
			m, err := f.load("builtin:" + strings.TrimPrefix(model, "builtin:"))
			if err != nil {
				return err
			}
			bin := filepath.Join(dir, fmt.Sprint(len(bins)))
			p, err := a.make(ctx, m, opt, bin)
			var unmet *compile.BudgetError
			if errors.As(err, &unmet) {
				continue // it can't do with half
			}
			if err != nil {
				return err
			}
			kernels, err := p.KernelCosts()
			if err != nil {
				return err
			}
			of, bins, promised = append(of, &costRow{Model: model, Budget: budget, Promised: float64(p.Report.CostNs) / 1e6}), append(bins, bin), append(promised, kernels)
		}
		least := make([]map[string]float64, len(bins))
		steps := make([]int, len(bins))
		for i, bin := range bins {
			p, err := profiled(ctx, bin, 2)
			if err != nil {
				return err
			}
			steps[i] = int(min(max(profileMs/p.Step, minSteps), maxSteps))
		}
		for range rounds {
			for i, bin := range bins {
				p, err := profiled(ctx, bin, steps[i])
				if err != nil {
					return err
				}
				least[i] = p.least(least[i])
				if r := of[i]; r.Measured == 0 || p.Step < r.Measured {
					r.Measured = p.Step
				}
			}
		}
		for i, r := range of {
			r.More = [2]float64{r.Promised/of[0].Promised - 1, r.Measured/of[0].Measured - 1}
			r.kinds(promised[i], least[i])
			rows = append(rows, r)
			if !a.json {
				fmt.Fprint(a.out, r)
			}
		}
	}
	if a.json {
		a.print(rows)
	}
	return nil
}

// A program is profiled for about so many milliseconds, within bounds. The first steps find caches and pages cold, which in
// short steps is more than what plans differ by.
const (
	profileMs = 500
	minSteps  = 6
	maxSteps  = 200
)

// profiled runs steps of a program.
func profiled(ctx context.Context, bin string, steps int) (*profile, error) {
	out, err := exec.CommandContext(ctx, bin, "--steps", strconv.Itoa(steps), "--profile", "--json", "--quiet").Output()
	if err != nil {
		return nil, diag.Errorf("io", "a compiled program failed: %v", err)
	}
	for _, line := range bytes.Split(out, []byte("\n")) {
		if bytes.HasPrefix(line, []byte(`{"profile"`)) {
			var p profile
			return &p, json.Unmarshal(line, &p)
		}
	}
	return nil, diag.Errorf("io", "a compiled program printed no profile")
}

func profileKey(kernel, layer string) string { return kernel + " " + layer }

// least lowers the time of each call of a kernel to that of p.
func (p *profile) least(known map[string]float64) map[string]float64 {
	if known == nil {
		known = map[string]float64{}
	}
	for _, r := range p.Rows {
		key, ms := profileKey(r.Kernel, r.Layer), (r.Run+r.Wait)/max(r.Calls, 1)
		if old, ok := known[key]; !ok || ms < old {
			known[key] = ms
		}
	}
	return known
}

// kinds adds a step's ops up.
func (r *costRow) kinds(promised []compile.KernelCost, measured map[string]float64) {
	for _, k := range promised {
		i := slices.IndexFunc(r.Kinds, func(x *costOfKinds) bool { return x.Kind == k.Kind })
		if i < 0 {
			i = len(r.Kinds)
			r.Kinds = append(r.Kinds, &costOfKinds{Kind: k.Kind})
		}
		x := r.Kinds[i]
		x.Runs++
		x.Promised += float64(k.Ns) / 1e6
		for _, s := range k.Symbols {
			x.Measured += measured[profileKey(s, k.Layer)]
		}
	}
	slices.SortStableFunc(r.Kinds, func(x, y *costOfKinds) int {
		switch {
		case x.Measured > y.Measured:
			return -1
		case x.Measured < y.Measured:
			return 1
		}
		return 0
	})
}

func (r *costRow) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %s: promised %.2f ms, measured %.2f; overhead promised %.1f %%, measured %.1f\n", r.Model, r.Budget, r.Promised, r.Measured, 100*r.More[0], 100*r.More[1])
	for _, k := range r.Kinds {
		fmt.Fprintf(&b, "  %5d × %-38s %10.3f %10.3f  %5.2f\n", k.Runs, k.Kind, k.Promised, k.Measured, k.Promised/max(k.Measured, 1e-6))
	}
	return b.String()
}
