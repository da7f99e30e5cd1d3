package compile

import (
	"slices"

	"reprise/passes/fuse"
	"reprise/planner"
)

// Which values readers should compute depends on the plan: a value that is made again for one reader alone is better
// made in it, one that is kept for several is not. So the choice is looked at again when there is a plan. Its parts are the kinds
// of values, for the readers of the forward and of the backward part apart. Each is turned over by itself, the
// plan is carried over to the program that results, op by op, and what its check says of bytes and time decides.

// maxStated bounds the ops that are stated anew for it, so that very large programs are planned in reasonable time.
const maxStated = 100_000

// cheaper plans fit and take less time.
func cheaper(budget int64) func(was, is planner.Report) bool {
	return func(was, is planner.Report) bool { return is.Cost < was.Cost && is.PeakBytes <= budget }
}

// smaller plans take fewer bytes, or less time for as many.
func smaller(was, is planner.Report) bool {
	return is.PeakBytes < was.PeakBytes || is.PeakBytes == was.PeakBytes && is.Cost < was.Cost
}

// draft is the order of a plan of a variant, and what its check says.
type draft struct {
	variant *variant
	order   []int
	is      planner.Report
}

// refined is a variant and the order of a plan of it after turning over what makes the plan better.
func (p *planning) refined(v *variant, order []int, better func(was, is planner.Report) bool) (draft, error) {
	at, err := p.stated(v)
	if err != nil {
		return draft{}, err
	}
	now, err := planner.Check(at.Problem.Problem, &planner.Plan{Order: order}, -1)
	if err != nil {
		return draft{}, err
	}
	parts, err := p.parts()
	if err != nil {
		return draft{}, err
	}
	left := maxStated / max(1, len(at.Ops))
	for k, in := 0, len(parts); in > 0 && left > 0; k, in, left = k+1, in-1, left-1 {
		w := v.turned(parts[k%len(parts)])
		to, err := p.stated(w)
		if err != nil {
			return draft{}, err
		}
		next := carried(at, to, order)
		is, err := planner.Check(to.Problem.Problem, &planner.Plan{Order: next}, -1)
		if err == nil && better(now, is) {
			v, at, order, now = w, to, next, is
			in = len(parts) // all others are looked at again
		}
	}
	return draft{v, order, now}, nil
}

// parts are the kinds, those for readers of the forward and of the backward part apart.
func (p *planning) parts() ([][]fuse.Site, error) {
	kinds, err := p.kinds()
	if err != nil {
		return nil, err
	}
	pr, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	var out [][]fuse.Site
	for _, k := range kinds {
		var half [2][]fuse.Site
		for _, s := range k.sites {
			i := 0
			if !pr.Forward[pr.at[s.Reader]] {
				i = 1
			}
			half[i] = append(half[i], s)
		}
		for _, part := range half {
			if len(part) > 0 {
				out = append(out, part)
			}
		}
	}
	return out, nil
}

// turned is v with the sites of a part, or without them if it has them.
func (v *variant) turned(part []fuse.Site) *variant {
	type key struct{ value, reader int }
	in := map[key]bool{}
	for _, s := range part {
		in[key{s.Value, s.Reader}] = true
	}
	w := &variant{}
	for _, s := range v.sites {
		if !in[key{s.Value, s.Reader}] {
			w.sites = append(w.sites, s)
		}
	}
	if len(w.sites) == len(v.sites) {
		w.sites = append(w.sites, part...)
	}
	return w
}

// carried is the order of a plan of one variant as one of another: ops keep their instances; one that is new
// runs right before each reader, one that would come too late right before its first; and instances go whose results nothing reads any more.
func carried(from, to *stated, order []int) []int {
	ops := to.Problem.Problem.Ops
	producer := make([]int, len(to.Values))
	for v := range producer {
		producer[v] = -1
	}
	added := make([]bool, len(ops))
	for i, op := range to.Ops {
		_, known := from.at[op.ID]
		added[i] = !known
		for _, v := range ops[i].Outputs {
			producer[v] = i
		}
	}
	var seq []int
	made := make([]bool, len(to.Values))
	var put func(i int)
	put = func(i int) {
		for _, v := range ops[i].Inputs {
			if j := producer[v]; j >= 0 && (added[j] || !made[v]) {
				put(j)
			}
		}
		seq = append(seq, i)
		for _, v := range ops[i].Outputs {
			made[v] = true
		}
	}
	for _, k := range order {
		if i, ok := to.at[from.Ops[k].ID]; ok {
			put(i)
		}
	}
	// From the end: what is read later, or stays, and one instance of each op in any case.
	need := make([]bool, len(to.Values))
	for v := range need {
		need[v] = to.Problem.Problem.Values[v].Output
	}
	before := make([]int, len(ops))
	for _, i := range seq {
		before[i]++
	}
	kept := make([]bool, len(ops))
	var out []int
	for _, i := range slices.Backward(seq) {
		before[i]--
		useful := before[i] == 0 && !kept[i]
		for _, v := range ops[i].Outputs {
			useful = useful || need[v]
		}
		if !useful {
			continue
		}
		kept[i] = true
		for _, v := range ops[i].Outputs {
			need[v] = false
		}
		for _, v := range ops[i].Inputs {
			need[v] = true
		}
		out = append(out, i)
	}
	slices.Reverse(out)
	return out
}
