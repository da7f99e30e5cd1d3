package planner

import "slices"

// The smallest plan is hard to reach by single changes to a plan that keeps things: on the way there peaks stay
// as they are, or grow. So it is also looked for from the other end, in problems in which everything, or all but what leaves a
// layer, must be computed again behind a gate. Their plans are plans of the problem itself.

// strictLimit is how many nodes a problem may have to be searched in other forms too.
const strictLimit = 4096

// further looks for a smaller plan than was found, in the strict forms of the problem.
func (s *search) further() {
	if len(s.m.gates) == 0 || s.m.n > strictLimit {
		return
	}
	var searches []*search
	for _, keep := range []func(leaves bool) bool{
		func(bool) bool { return false },
		func(leaves bool) bool { return leaves },
	} {
		if p := s.p.strict(keep); p != nil {
			q := newSearch(s.ctx, p, s.opt)
			q.start = s.start
			searches = append(searches, q)
		}
	}
	found := make([][]int32, len(searches))
	s.parallel(len(searches), func(k int) { found[k], _ = searches[k].findSmallest() })
	for k, q := range searches {
		s.steps += q.steps
		s.found.steps += q.steps
		if found[k] == nil {
			continue
		}
		var seq []int32
		for _, x := range found[k] {
			if y := s.m.nodeOf[q.m.op[x]]; y >= 0 {
				seq = append(seq, y)
			}
		}
		seq = s.again(seq)
		if peak, _, ok := s.sim.run(seq); ok && s.m.honest(seq) && (s.found.seq == nil || peak < s.found.peak) {
			s.found.seq, s.found.peak = slices.Clone(seq), peak
		}
	}
}

// strict is p with every value that may be computed twice, that nobody has said anything of and that keep
// does not name, computed again behind each gate; leaves tells keep that another group reads it. It is nil where p says as much.
func (p *Problem) strict(keep func(leaves bool) bool) *Problem {
	producer := make([]int, len(p.Values))
	for v := range producer {
		producer[v] = -1
	}
	for i := range p.Ops {
		for _, v := range p.Ops[i].Outputs {
			producer[v] = i
		}
	}
	leaves := make([]bool, len(p.Values))
	for i := range p.Ops {
		for _, v := range p.Ops[i].Inputs {
			if j := producer[v]; j >= 0 && p.Ops[j].Group != p.Ops[i].Group {
				leaves[v] = true
			}
		}
	}
	q := *p
	q.Values = slices.Clone(p.Values)
	changed := false
	for v := range q.Values {
		x := &q.Values[v]
		if j := producer[v]; j < 0 || p.Ops[j].RunsOnce() || x.Output || x.Policy != PolicyNone || keep(leaves[v]) {
			continue
		}
		x.Policy, changed = MustRecompute, true
	}
	if !changed || recomputable(&q) != nil {
		return nil
	}
	return &q
}
