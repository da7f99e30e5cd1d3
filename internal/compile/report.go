package compile

import (
	"fmt"
	"slices"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/ir"
	"reprise/passes/lower"
	"reprise/passes/remat"
)

// Report is what compile and plan print as JSON; names and units are fixed.
type Report struct {
	Model             string  `json:"model"`
	Target            string  `json:"target"`
	BudgetBytes       int64   `json:"budget_bytes"`
	PromisedPeakBytes int64   `json:"promised_peak_bytes"`
	ArenaBytes        int64   `json:"arena_bytes"`
	ResidentBytes     int64   `json:"resident_bytes"`
	LiveBytes         int64   `json:"live_peak_bytes"` // what is in use at the peak; the arena is at least that
	SaveAllPeakBytes  int64   `json:"save_all_peak_bytes"`
	MinBudgetBytes    int64   `json:"min_budget_bytes,omitempty"`
	CostNs            int64   `json:"cost_ns"`
	BaseCostNs        int64   `json:"base_cost_ns"`
	Overhead          float64 `json:"overhead"`
	LowerBoundNs      int64   `json:"lower_bound_ns"`
	Gap               float64 `json:"gap"`
	Proof             string  `json:"proof"`
	Solver            string  `json:"solver"`
	Ops               int     `json:"ops"`
	Kernels           int     `json:"kernels"`
	Saved             int     `json:"saved"`
	Recomputed        int     `json:"recomputed"`
	Pinned            int     `json:"pinned"`
	PlanSeconds       float64 `json:"plan_seconds"`
	CompileSeconds    float64 `json:"compile_seconds"`
	BinaryBytes       int64   `json:"binary_bytes,omitempty"`
	InputSHA256       string  `json:"input_sha256"`
	BinarySHA256      string  `json:"binary_sha256,omitempty"`
}

// stable is the report without what differs between two runs, for the binary itself.
func (r Report) stable() Report {
	r.PlanSeconds, r.CompileSeconds, r.BinaryBytes, r.BinarySHA256 = 0, 0, 0, ""
	return r
}

func newReport(m *frontend.Model, t cpu.Target, limit int64, p, all, least *planned) Report {
	_, state, _ := residents(p.applied.Func)
	r := Report{Model: m.Name, Target: t.String(), BudgetBytes: limit, PromisedPeakBytes: p.arena, ArenaBytes: p.arena, ResidentBytes: state,
		LiveBytes: p.resident + p.frame.Live, SaveAllPeakBytes: all.arena, CostNs: p.plan.Cost, BaseCostNs: p.plan.BaseCost, Overhead: p.plan.Overhead,
		LowerBoundNs: p.plan.LowerBound, Gap: p.plan.Gap, Proof: p.plan.Proof, Solver: p.plan.Solver, Ops: len(p.applied.Func.Body.Ops),
		InputSHA256: m.SHA256}
	if least != nil {
		r.MinBudgetBytes = least.arena
	}
	for _, v := range valueReports(p) {
		switch v.Fate {
		case FateSaved:
			r.Saved++
		case FateRecomputed:
			r.Recomputed++
		case FatePinned:
			r.Pinned++
		}
	}
	return r
}

// Fates of a value.
const (
	FateResident   = "resident"   // in memory from start to end: state and inputs
	FateSaved      = "saved"      // computed once and kept to its last use
	FateRecomputed = "recomputed" // computed again for a later use
	FatePinned     = "pinned"     // computed once because it must not be computed twice
	FateLocal      = "local"      // used up right after it was made
	FateConstant   = "constant"   // stands in the program
)

// ValueReport says what became of a value and why.
type ValueReport struct {
	Name   string `json:"name"`
	Layer  string `json:"layer"`
	Op     string `json:"op"`
	Type   string `json:"type"`
	Bytes  int64  `json:"bytes"`
	Fate   string `json:"fate"`
	Runs   int    `json:"runs"` // how often its op runs in a step
	Reason string `json:"reason"`
	// Spans are the stretches of the schedule, first and last op, in which it is in memory.
	Spans [][2]int `json:"spans,omitempty"`
}

// valueReports explains every value of the planned step, in the order in which they are first made.
func valueReports(p *planned) []ValueReport {
	f := p.applied.Func
	var out []ValueReport
	for _, v := range f.Body.Params {
		out = append(out, ValueReport{Name: v.Name, Layer: layerOf(v), Op: v.Role(), Type: v.Type.String(), Bytes: v.Type.Bytes(), Fate: FateResident,
			Reason: residentReason(v)})
	}
	last := map[*ir.Value]int{}
	for i, op := range f.Body.Ops {
		for _, v := range op.Operands {
			last[v] = i
		}
	}
	isResult := map[*ir.Value]bool{}
	for _, v := range f.Body.Results {
		isResult[v] = true
		last[v] = len(f.Body.Ops)
	}
	index := map[*ir.Value]int{}
	for pos, op := range f.Body.Ops {
		for i, v := range op.Results {
			if op.Remat != nil {
				r := &out[index[op.Remat.Results[i]]]
				r.Runs++
				if lower.IsView(op) {
					continue
				}
				r.Fate = FateRecomputed
				r.Spans = append(r.Spans, [2]int{pos, last[v]})
				r.Reason = fmt.Sprintf("run %d times: keeping its %s from position %d to %d costs more memory than the budget leaves", r.Runs, Bytes(r.Bytes), r.Spans[0][1], pos)
				continue
			}
			r := ValueReport{Name: v.Name, Layer: op.Loc.Layer, Op: remat.Name(op), Type: v.Type.String(), Bytes: v.Type.Bytes(), Runs: 1,
				Spans: [][2]int{{pos, last[v]}}}
			r.Fate, r.Reason = fate(op, v, pos, last[v], isResult[v])
			if h := p.frame.Homes[v]; h.Param != nil && !lower.IsView(op) {
				r.Fate, r.Reason = FateResident, fmt.Sprintf("the new value of %s %s, written over the old one", h.Param.Role(), h.Param.Name)
			}
			index[v] = len(out)
			out = append(out, r)
		}
	}
	return out
}

func residentReason(v *ir.Value) string {
	switch v.Role() {
	case ir.RoleParam:
		return "a parameter: in memory from step to step"
	case ir.RoleOpt:
		return "optimizer state: in memory from step to step"
	case ir.RoleBuffer:
		return "state: in memory from step to step"
	}
	return "an input of the step"
}

func fate(op *ir.Op, v *ir.Value, pos, last int, result bool) (string, string) {
	det, effect := remat.Det(op), remat.Effect(op)
	switch {
	case lower.IsConstant(op):
		return FateConstant, "a constant of the model"
	case lower.IsView(op):
		return FateLocal, "another shape of the same memory"
	case effect != ir.EffectNone:
		return FatePinned, fmt.Sprintf("its op has an effect (%s) and happens exactly once", effect)
	case det == ir.Decides:
		return FatePinned, "a discrete decision: made once, so that nothing can be routed differently the second time"
	case det == ir.Tol || det == ir.Unknown:
		return FatePinned, fmt.Sprintf("its op's order of arithmetic is %s: a second run could give other bits", det)
	case result:
		return FateSaved, "a result of the step"
	case last <= pos+1:
		return FateLocal, "read right after it is made"
	}
	return FateSaved, fmt.Sprintf("kept from position %d to %d: it fits, and computing it again would cost time", pos, last)
}

// SortValues orders reports by bytes, largest first.
func SortValues(vs []ValueReport) {
	slices.SortStableFunc(vs, func(a, b ValueReport) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return 0
	})
}
