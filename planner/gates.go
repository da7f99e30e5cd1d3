package planner

import (
	"context"
	"fmt"
)

// Must-recompute values may not be in memory across a gate: no instance may be
// made before the first run of a gate and used after it. What the gate itself
// reads or makes may be in memory while it runs. Values that are outputs of the problem, or
// share the memory of one, live to the end anyway and are not meant.
//
// Check measures it on its replay; the solvers repair or respect it through
// model.toll and the functions below.

// gatePositions returns where each gate first runs in order.
func gatePositions(p *Problem, order []int) []int {
	out := make([]int, 0, len(p.Gates))
	for _, g := range p.Gates {
		for pos, i := range order {
			if i == g {
				out = append(out, pos)
				break
			}
		}
	}
	return out
}

// across returns the storage instances, resident ones apart, that are in
// memory across a gate.
func (r *replay) across() []int {
	var out []int
	gates := gatePositions(r.p, r.order)
	ends := make(map[int]bool) // instances of outputs, which outlive the last op, be it a gate
	for v := range r.p.Values {
		ends[r.now[v]] = ends[r.now[v]] || r.p.Values[v].Output
	}
	for k := range r.inst {
		s := &r.inst[k]
		if s.start < 0 {
			continue
		}
		for _, g := range gates {
			if s.start < g && (g < s.last || ends[k]) {
				out = append(out, k)
				break
			}
		}
	}
	return out
}

// KeptAcross tells for each value whether some instance of its memory is kept
// across a gate when the ops run in the given order. Both arguments must be
// valid: where Check rejects the order, the answer is about its legal beginning.
func KeptAcross(p *Problem, order []int) []bool {
	out := make([]bool, len(p.Values))
	r := newReplay(p, order)
	_ = r.run()
	root := make([]bool, len(p.Values))
	for _, k := range r.across() {
		root[r.rootOf[r.inst[k].value]] = true
	}
	for v := range out {
		out[v] = !p.Values[v].Resident && root[r.rootOf[v]]
	}
	return out
}

// recomputed applies the rule to a replay.
func (r *replay) recomputed() *Violation {
	p := r.p
	must := make(map[int]int) // storage: a must-recompute value in it
	for v := range p.Values {
		if p.Values[v].Policy == MustRecompute {
			must[r.rootOf[v]] = v
		}
	}
	for v := range p.Values {
		if p.Values[v].Output || p.Values[v].Resident {
			delete(must, r.rootOf[v])
		}
	}
	if len(must) == 0 {
		return nil
	}
	for _, k := range r.across() {
		if v, ok := must[r.rootOf[r.inst[k].value]]; ok {
			s := &r.inst[k]
			return r.violation(RulePolicy, s.start, r.order[s.start], v, "%s must be recomputed, but it is kept from position %d to %d, across a gate", p.valueName(v), s.start, s.last)
		}
	}
	return nil
}

// tolls finds which buffers may not be live across a gate, and the gates' nodes.
func (m *model) tolls() {
	m.toll = make([]bool, len(m.size))
	m.gate = make([]bool, m.n)
	for _, g := range m.p.Gates {
		if x := m.nodeOf[g]; x >= 0 && !m.gate[x] {
			m.gate[x] = true
			m.gates = append(m.gates, x)
		}
	}
	if len(m.gates) == 0 {
		return
	}
	m.must = nil
	stays := make([]bool, len(m.al.size)) // by storage: it lives to the end anyway
	for v := range m.p.Values {
		s := m.al.storage[v]
		stays[s] = stays[s] || m.p.Values[v].Output || m.p.Values[v].Resident
	}
	for v := range m.p.Values {
		if b := m.buf[v]; b >= 0 && m.p.Values[v].Policy == MustRecompute && !stays[m.al.storage[v]] {
			m.toll[b] = true
			m.tolled = true
		}
	}
	if !m.tolled {
		return
	}
	// What a descendant of a gate reads, and an ancestor of it makes, runs on both
	// sides; so does what such a second run reads.
	const before, after = 1, 2
	twice := make([]bool, m.n)
	for _, g := range m.gates {
		side := make([]uint8, m.n)
		var mark func(x int32, s uint8, next func(x int32) []int32)
		stack := []int32{}
		mark = func(x int32, s uint8, next func(x int32) []int32) {
			stack = append(stack[:0], x)
			for len(stack) > 0 {
				x := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				for _, y := range next(x) {
					if side[y]&s == 0 {
						side[y] |= s
						stack = append(stack, y)
					}
				}
			}
		}
		mark(g, before, func(x int32) []int32 {
			var out []int32
			for _, b := range m.ins[x] {
				out = append(out, m.prod[b])
			}
			return out
		})
		mark(g, after, func(x int32) []int32 {
			var out []int32
			for _, b := range m.outs[x] {
				out = append(out, m.users[b]...)
			}
			return out
		})
		here := make([]bool, m.n) // twice for the sake of this gate
		for k := len(m.order) - 1; k >= 0; k-- {
			x := m.order[k]
			if side[x]&after == 0 && !here[x] {
				continue
			}
			for _, b := range m.ins[x] {
				if y := m.prod[b]; m.toll[b] && side[y]&before != 0 && !here[y] {
					here[y] = true
				}
			}
		}
		for x, t := range here {
			twice[x] = twice[x] || t
		}
	}
	for x, t := range twice {
		if t {
			m.atLeast += m.cost[x]
		}
	}
}

// repaid returns seq with what must not be kept across gates computed again
// right before its next reader.
func (m *model) repaid(seq []int32) []int32 {
	if !m.tolled {
		return seq
	}
	passed := make([]bool, m.n) // gates that have run
	stale := make([]bool, len(m.size))
	out := make([]int32, 0, len(seq)+len(seq)/4)
	var fresh func(b int32, depth int) bool
	run := func(x int32) {
		out = append(out, x)
		for _, b := range m.outs[x] {
			stale[b] = false
		}
	}
	fresh = func(b int32, depth int) bool {
		if !m.toll[b] || !stale[b] {
			return true
		}
		x := m.prod[b]
		if m.once[x] || depth > m.n {
			return false
		}
		for _, in := range m.ins[x] {
			if !fresh(in, depth+1) {
				return false
			}
		}
		run(x)
		return true
	}
	made := make([]bool, len(m.size))
	for _, x := range seq {
		for _, b := range m.ins[x] {
			if !fresh(b, 0) {
				return seq
			}
		}
		run(x)
		for _, b := range m.outs[x] {
			made[b] = true
		}
		if m.gate[x] && !passed[x] {
			passed[x] = true
			for b := range stale {
				if m.toll[b] && made[b] && m.prod[b] != x {
					stale[b] = true
				}
			}
		}
	}
	return out
}

// honest reports whether seq keeps nothing across a gate that it must not.
func (m *model) honest(seq []int32) bool {
	if !m.tolled {
		return true
	}
	passed := make([]bool, m.n)
	stale := make([]bool, len(m.size))
	made := make([]bool, len(m.size))
	for _, x := range seq {
		for _, b := range m.ins[x] {
			if stale[b] {
				return false
			}
		}
		for _, b := range m.outs[x] {
			made[b], stale[b] = true, false
		}
		if m.gate[x] && !passed[x] {
			passed[x] = true
			for b := range stale {
				stale[b] = stale[b] || m.toll[b] && made[b] && m.prod[b] != x
			}
		}
	}
	return true
}

// obeys is honest in the terms of Check, which looks at whole storages: where several buffers share one, the model sees less.
func (s *search) obeys(seq []int32) bool {
	if !s.m.honest(seq) {
		return false
	}
	if !s.m.tolled || s.m.exact {
		return true
	}
	r := newReplay(s.p, s.m.emit(seq))
	return r.run() == nil && r.recomputed() == nil
}

// recomputable reports the first value that must be recomputed and is the result of an
// op that may run only once.
func recomputable(p *Problem) error {
	if len(p.Gates) == 0 {
		return nil
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		why := ""
		if o.RunsOnce() {
			why = fmt.Sprintf("its determinism is %s and its effect %s", o.Det, o.Effect)
		}
		for _, v := range o.Outputs {
			if p.Values[v].Policy == MustSave {
				why = p.valueName(v) + " must be saved"
			}
		}
		for _, v := range o.Outputs {
			if why != "" && p.Values[v].Policy == MustRecompute && !p.Values[v].Output {
				return valueErr(v, "%s must be recomputed, but %s runs once: %s", p.valueName(v), p.opName(i), why)
			}
		}
	}
	return nil
}

// passes reports whether some instance of buffer u is made before a gate and read behind it, or is an output.
func (t *timeline) passes(u int32) bool {
	runs, reads := t.runs[t.m.prod[u]], t.reads[u]
	for _, g := range t.m.gates {
		border := t.slot[t.runs[g][0]]
		if t.m.final[u] && t.slot[runs[len(runs)-1]] < border {
			return true
		}
		k := t.before(reads, border+1)
		if k == len(reads) {
			continue
		}
		if t.slot[runs[t.before(runs, t.slot[reads[k]])-1]] < border {
			return true
		}
	}
	return false
}

// dishonest reports whether the moves in the log made something pass a gate that
// must not, or more of a limit's values than it allows.
func (a *annealer) dishonest() bool { return a.evades() || a.overdrawn() }

// evades is dishonest for what must be recomputed.
func (a *annealer) evades() bool {
	t, m := a.t, a.m
	if !m.tolled {
		return false
	}
	passes := func(u int32) bool { return m.toll[u] && t.passes(u) }
	for _, c := range t.log {
		x := c.node
		if c.insert {
			x = t.node[c.inst]
		}
		if m.gate[x] {
			for u := range m.toll {
				if passes(int32(u)) {
					return true
				}
			}
			return false
		}
		for _, u := range m.ins[x] {
			if passes(u) {
				return true
			}
		}
		for _, u := range m.outs[x] {
			if passes(u) {
				return true
			}
		}
	}
	return false
}

// Obey returns the plan that keeps the given order and recomputes, right before
// the first reader behind each gate, what must be recomputed and what limits leave no room for, and nothing else:
// what the policies mean by themselves, without a budget. The error is a *ProblemError if
// a policy can't be obeyed in that order.
func Obey(p *Problem) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := recomputable(p); err != nil {
		return nil, err
	}
	if len(p.Limits) > 0 {
		return obeyLimits(p)
	}
	s := newSearch(context.Background(), p, Options{})
	seq := s.again(s.m.order)
	if _, _, ok := s.sim.run(seq); !ok || !s.obeys(seq) {
		var err error
		if seq, err = s.least(); err != nil {
			return nil, err
		}
	}
	plan, err := s.plan(seq, "policy")
	if err != nil {
		return nil, err
	}
	plan.BudgetBytes = max(plan.PeakBytes, plan.ArenaBytes)
	return plan, nil
}
