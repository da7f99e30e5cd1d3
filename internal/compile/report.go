package compile

import (
	"fmt"
	"slices"
	"strings"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/passes/lower"
	"reprise/passes/policy"
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
	Ops               int     `json:"ops"` // of a step, those that are run again included; views and constants aside
	Launches          int     `json:"launches,omitempty"`
	Kernels           int     `json:"kernels,omitempty"` // of the code, which a plan alone has none of
	Saved             int     `json:"saved"`             // values
	Recomputed        int     `json:"recomputed"`        // ops that are run again, once for each time
	RecomputeNs       int64   `json:"recompute_ns"`      // their time, and what readers take to compute values for themselves
	Fused             int     `json:"fused"`             // values that are never in memory: their readers compute them
	Pinned            int     `json:"pinned"`            // values
	PeakPosition      int     `json:"peak_position"`     // of the op at the peak, in the schedule
	PeakOp            string  `json:"peak_op"`
	PeakLayer         string  `json:"peak_layer"`
	PlanSeconds       float64 `json:"plan_seconds"`
	CompileSeconds    float64 `json:"compile_seconds"`
	CheckSeconds      float64 `json:"check_seconds"` // of these, what the checks of every compilation took
	BinaryBytes       int64   `json:"binary_bytes,omitempty"`
	// Costs is what the table of costs covered; nil without one.
	Costs *CostReport `json:"costs,omitempty"`
	// RecomputeAllowed are the layers that were opted out of pinning, NoCostModel the foreign kernels
	// that declare no cost; Warnings say so in sentences.
	RecomputeAllowed []string `json:"recompute_allowed,omitempty"`
	NoCostModel      []string `json:"no_cost_model,omitempty"`
	Warnings         []string `json:"warnings,omitempty"`
	InputSHA256      string   `json:"input_sha256"`
	BinarySHA256     string   `json:"binary_sha256,omitempty"`

	Policy *policy.Report `json:"policy,omitempty"` // what its lines matched; nil without a policy
}

// stable is the report without what differs between two runs, for the binary itself.
func (r Report) stable() Report {
	r.PlanSeconds, r.CompileSeconds, r.CheckSeconds, r.BinaryBytes, r.BinarySHA256 = 0, 0, 0, 0, ""
	r.BudgetBytes = min(r.BudgetBytes, r.SaveAllPeakBytes) // a budget with room to spare leaves no trace
	if r.Policy != nil && !r.Policy.Active() {
		r.Policy = nil // an inference program has no trace of a policy
	}
	return r
}

func newReport(m *frontend.Model, t cpu.Target, limit int64, p, all, least *planned, e *Explanation) Report {
	_, state, _ := residents(p.applied.Func)
	r := Report{Model: m.Name, Target: t.String(), BudgetBytes: limit, PromisedPeakBytes: p.arena, ArenaBytes: p.arena, ResidentBytes: state,
		LiveBytes: e.Memory.StepResidentBytes + e.Memory.PeakBytes, SaveAllPeakBytes: all.arena, CostNs: p.plan.Cost, BaseCostNs: p.plan.BaseCost,
		Overhead: p.plan.Overhead, LowerBoundNs: p.plan.LowerBound, Gap: p.plan.Gap, Proof: p.plan.Proof, Solver: p.plan.Solver,
		Recomputed: p.applied.Recomputed, RecomputeNs: p.plan.Cost - p.plan.BaseCost,
		PeakPosition: e.Memory.PeakPosition, PeakOp: e.Memory.PeakOp, PeakLayer: e.Memory.PeakLayer, InputSHA256: m.SHA256, Policy: p.rules}
	if least != nil {
		r.MinBudgetBytes = min(least.arena, p.arena) // the search by cost may find what the search by bytes did not
	}
	r.RecomputeAllowed, r.NoCostModel = p.problem.AllowedLayers(), p.problem.NoCost
	r.Warnings, r.Costs = warnings(p.problem), p.costs
	if w := p.costs.warning(); w != "" {
		r.Warnings = append(r.Warnings, w)
	}
	for _, op := range p.applied.Func.Body.Ops {
		if !lower.IsConstant(op) && !lower.IsView(op) {
			r.Ops++
		}
	}
	for _, v := range e.Values {
		switch v.Fate {
		case FateSaved:
			r.Saved++
		case FatePinned:
			r.Pinned++
		case FateFused:
			r.Fused++
		}
	}
	return r
}

// warnings are what a person should know of a plan.
func warnings(p *remat.Problem) []string {
	var out []string
	if layers := p.AllowedLayers(); len(layers) > 0 {
		kinds := []string{}
		for _, op := range p.Allowed {
			if !slices.Contains(kinds, remat.Kind(op)) {
				kinds = append(kinds, remat.Kind(op))
			}
		}
		out = append(out, fmt.Sprintf("recomputation of pinned ops (%s) is allowed in layers %s: where one of them gives other bits the second time, gradients are silently wrong",
			strings.Join(kinds, ", "), strings.Join(layers, ", ")))
	}
	if len(p.NoCost) > 0 {
		out = append(out, fmt.Sprintf("no cost model for %s: kept rather than computed again (declare cost_ns)", strings.Join(p.NoCost, ", ")))
	}
	return out
}
