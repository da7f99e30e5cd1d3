package planner

// tidy gives an order without the instances that nothing reads: every output is computed again before a reader
// comes, or no reader comes. Searches leave some behind. Every op keeps one instance.
func tidy(p *Problem, order []int) []int {
	drop := make([]bool, len(order))
	later := make([]bool, len(p.Ops))   // a kept instance comes later
	read := make([]bool, len(p.Values)) // a kept instance that comes later reads the value before it is made again
	earlier := make([]int, len(p.Ops))  // instances before the position
	for _, i := range order {
		earlier[i]++
	}
	n := 0
	for k := len(order) - 1; k >= 0; k-- {
		i := order[k]
		op := &p.Ops[i]
		earlier[i]--
		needed := !later[i] && earlier[i] == 0
		for _, v := range op.Outputs {
			needed = needed || read[v] || p.Values[v].Output && !later[i]
		}
		if !needed {
			drop[k] = true
			n++
			continue
		}
		later[i] = true
		for _, v := range op.Outputs {
			read[v] = false
		}
		for _, v := range op.Inputs {
			read[v] = true
		}
	}
	if n == 0 {
		return order
	}
	out := make([]int, 0, len(order)-n)
	for k, i := range order {
		if !drop[k] {
			out = append(out, i)
		}
	}
	return out
}
