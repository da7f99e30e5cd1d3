package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/runtime/exe"
)

// explained is what explain --json prints.
type explained struct {
	Report compile.Report
	compile.Explanation
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}

// TestNumbersAgree: what plan, compile, explain (of the model, of its plan's file and of its binary), verify, the
// binary's description and its last line print of a model at a budget is the same in bytes, and the memory over the
// step adds up to it.
func TestNumbersAgree(t *testing.T) {
	toolchain(t)
	cases := []struct {
		spec, budget string
		verify       bool
	}{
		{"builtin:mlp,in=8,hidden=16,layers=2,batch=4,dropout=0.2", "min", true},
		{"builtin:lstm,batch=3,seq=5,d=24,vocab=30", "100%", false},
	}
	if os.Getenv("REPRISE_LONG") != "" {
		cases = nil
		for _, spec := range []string{"builtin:mlp,in=8,hidden=16,layers=3,batch=4,dropout=0.2", "builtin:lstm,batch=3,seq=5,d=24,vocab=30", gpt,
			"builtin:cnn,size=12,width=4,batch=3,dropout=0.2", "builtin:llama,layers=2,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33",
			"builtin:moe,layers=2,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4"} {
			for _, budget := range []string{"100%", "min"} {
				cases = append(cases, struct {
					spec, budget string
					verify       bool
				}{spec, budget, true})
			}
		}
	}
	for _, c := range cases {
		t.Run(c.spec+" at "+c.budget, func(t *testing.T) {
			dir := t.TempDir()
			bin, planFile := filepath.Join(dir, "m"), filepath.Join(dir, "p.json")
			flags := []string{c.spec, "--train", "--budget", c.budget, "--json"}
			var want, planned compile.Report
			decode(t, ok(t, append([]string{"compile", "-o", bin}, flags...)...), &want)
			decode(t, ok(t, append([]string{"plan", "-o", planFile}, flags...)...), &planned)
			// A plan has no code; all else is the same.
			code := func(r compile.Report) compile.Report {
				r.Launches, r.Kernels, r.BinaryBytes, r.BinarySHA256, r.PlanSeconds, r.CompileSeconds, r.CheckSeconds = 0, 0, 0, "", 0, 0, 0
				return r
			}
			assert.Equal(t, code(want), code(planned), "plan and compile")
			assert.Equal(t, want.PromisedPeakBytes, want.ArenaBytes)
			assert.LessOrEqual(t, want.ArenaBytes, want.BudgetBytes)
			texts := []string{ok(t, append([]string{"explain"}, flags...)...), ok(t, "explain", planFile, "--json"), ok(t, "explain", bin, "--json")}
			for i, text := range texts {
				var e explained
				decode(t, text, &e)
				assert.Equal(t, code(want), code(e.Report), "explain %d", i)
				adds(t, &e)
			}
			assert.Equal(t, ok(t, "explain", planFile), ok(t, "explain", bin))
			assert.Contains(t, ok(t, "explain", bin), fmt.Sprintf(" (%d bytes) of a budget of ", want.ArenaBytes))
			// The program.
			described, err := exec.Command(bin, "--describe").Output()
			require.NoError(t, err)
			var d exe.Description
			decode(t, string(described), &d)
			assert.Equal(t, []int64{want.PromisedPeakBytes, want.ArenaBytes, want.ResidentBytes}, []int64{d.PromisedPeakBytes, d.ArenaBytes, d.ResidentBytes})
			assert.Equal(t, []int{want.Launches, want.Kernels}, []int{d.Launches, d.Kernels})
			assert.Equal(t, want.InputSHA256, d.InputSHA256)
			out, err := exec.Command(bin, "--steps", "2", "--json").Output()
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			var last struct {
				Done     bool  `json:"done"`
				Promised int64 `json:"promised_peak_bytes"`
				Arena    int64 `json:"arena_bytes"`
			}
			decode(t, lines[len(lines)-1], &last)
			assert.True(t, last.Done)
			assert.Equal(t, []int64{want.PromisedPeakBytes, want.ArenaBytes}, []int64{last.Promised, last.Arena}, "the running program")
			if !c.verify {
				return
			}
			var v verdict
			decode(t, ok(t, "verify", c.spec, "--budget", c.budget, "--steps", "1", "--json"), &v)
			assert.Equal(t, []int64{want.BudgetBytes, want.PromisedPeakBytes, want.ArenaBytes}, []int64{v.Budget, v.Promised, v.Arena}, "verify")
			assert.Equal(t, []int{want.Recomputed, want.Pinned}, []int{v.Recomputed, v.Pinned})
		})
	}
}

// adds checks the sums of an explanation against its report.
func adds(t *testing.T, e *explained) {
	t.Helper()
	r, m := e.Report, e.Memory
	assert.Equal(t, r.ArenaBytes, m.ArenaBytes)
	assert.Equal(t, m.ArenaBytes, m.StepResidentBytes+m.PeakBytes+m.UnusedBytes)
	assert.Equal(t, r.LiveBytes, m.StepResidentBytes+m.PeakBytes)
	assert.GreaterOrEqual(t, m.UnusedBytes, int64(0))
	// Stretches summed up anew.
	live := make([]int64, len(e.Ops)+1)
	for _, s := range e.Stretches {
		for pos := s.Start; pos <= min(s.End, len(e.Ops)); pos++ {
			live[pos] += s.Bytes
		}
		assert.LessOrEqual(t, m.StepResidentBytes+s.Offset+s.Bytes, m.ArenaBytes)
	}
	most := int64(0)
	for pos, b := range live {
		most = max(most, b)
		if pos < len(e.Ops) {
			assert.Equal(t, b, e.Ops[pos].Bytes)
		}
	}
	assert.Equal(t, m.PeakBytes, most)
	assert.Equal(t, m.PeakBytes, live[m.PeakPosition])
	// Time and counts.
	var ns, again int64
	ops, recomputed := 0, 0
	for _, o := range e.Ops {
		ns += o.Ns
		if o.Ns > 0 {
			ops++
			if o.Clone > 0 {
				recomputed++
				again += o.Ns
			}
		}
	}
	assert.Equal(t, r.CostNs, ns)
	assert.Equal(t, r.CostNs-r.BaseCostNs, r.RecomputeNs)
	if !slices.ContainsFunc(e.Values, func(v compile.ValueReport) bool { return v.Fate == compile.FateFused }) {
		assert.Equal(t, again, r.RecomputeNs) // readers that compute values for themselves take another time than the ops before planning
	}
	assert.Equal(t, []int{r.Ops, r.Recomputed}, []int{ops, recomputed})
	var saved, pinned int
	var residents int64
	for _, v := range e.Values {
		switch v.Fate {
		case compile.FateSaved:
			saved++
		case compile.FatePinned:
			pinned++
		case compile.FateResident:
			residents += (v.Bytes + exe.Align - 1) / exe.Align * exe.Align
		}
		assert.NotEmpty(t, v.Reason, v.Name)
	}
	assert.Equal(t, m.StepResidentBytes, residents)
	assert.Equal(t, []int{r.Saved, r.Pinned}, []int{saved, pinned})
}
