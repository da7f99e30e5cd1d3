package policy

import "slices"

// carry makes a line that has a value computed again hold for what is only that value in another order
// or shape as well, where no line says anything of it: to keep the permuted copy of a gathered
// weight is to keep the weight.
func (x *context) carry(decided []decision) {
	pr := x.problem
	under := pr.Under()
	at := map[int]int{} // value → candidate
	for k, c := range x.cands {
		at[c.value] = k
	}
	for k, c := range x.cands {
		if decided[k].where.Text != "" || !c.rearranges() {
			continue
		}
		var from *decision
		for _, in := range pr.Problem.Ops[c.op].Inputs {
			j, ok := at[under[in]]
			if !ok || decided[j].verdict != mustRecompute && decided[j].verdict != preferRecompute || x.cands[j].kept != "" {
				from = nil
				break
			}
			from = &decided[j]
		}
		if from != nil {
			decided[k] = *from
		}
	}
}

// rearranges: c holds the elements of what its op reads, and computes nothing.
func (c *candidate) rearranges() bool {
	for _, o := range computing(c.ctx.problem.Ops[c.op], c.v.Index) {
		if !slices.Contains([]string{"transpose", "reshape", "broadcast", "slice", "reverse", "copy", "convert"}, o.Name()) {
			return false
		}
	}
	return true
}
