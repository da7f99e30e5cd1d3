package planner

// reorder returns an order of first runs that needs less memory than the given
// one where that is easy: an op that frees at least as much as it allocates,
// alone or with the op that alone reads its outputs, runs as soon as it can.
// (In a training step those are the updates of parameters and the gradients of
// weights.) Ties keep the given order.
func reorder(m *model, order []int32) []int32 {
	n := m.n
	waits := make([]int32, n) // what must run before: distinct (predecessor, kind) pairs
	preds := make([][]int32, n)
	succs := make([][]int32, n)
	link := func(a, b int32) {
		if a != b && !contains(preds[b], a) {
			preds[b] = append(preds[b], a)
			succs[a] = append(succs[a], b)
			waits[b]++
		}
	}
	for x := int32(0); x < int32(n); x++ {
		for _, b := range m.ins[x] {
			link(m.prod[b], x)
		}
		for _, y := range m.ctrl[x] {
			link(y, x)
		}
		for _, r := range m.since[x] {
			link(r, x)
		}
	}
	left := make([]int32, len(m.size)) // readers that have not run
	for b := range m.users {
		left[b] = int32(len(m.users[b]))
	}
	done := make([]bool, n)
	place := make([]int32, n)
	for k, x := range order {
		place[x] = int32(k)
	}
	// net is what running x adds to live memory, given that seen has run too.
	net := func(x, seen int32) int64 {
		var s int64
		for _, b := range m.outs[x] {
			if len(m.users[b]) > 0 || m.final[b] {
				s += m.size[b]
			}
		}
		for _, b := range m.ins[x] {
			l := left[b]
			if seen >= 0 && contains(m.ins[seen], b) {
				l--
			}
			if l == 1 && !m.final[b] {
				s -= m.size[b]
			}
		}
		return s
	}
	gain := func(x int32) bool {
		a := net(x, -1)
		if a <= 0 {
			return true
		}
		for _, y := range succs[x] {
			if waits[y] == 1 {
				// y reads what x makes, so its net counts x's outputs as freed
				// where it is their last reader.
				if a+net(y, x) <= 0 {
					return true
				}
			}
		}
		return false
	}
	out := make([]int32, 0, n)
	var ready []int32 // sorted by place
	insert := func(x int32) {
		k := len(ready)
		ready = append(ready, x)
		for k > 0 && place[ready[k-1]] > place[x] {
			ready[k] = ready[k-1]
			k--
		}
		ready[k] = x
	}
	for _, x := range order {
		if waits[x] == 0 {
			insert(x)
		}
	}
	next := 0
	for len(out) < n {
		pick := -1
		for k, x := range ready {
			if k > 256 {
				break
			}
			if gain(x) {
				pick = k
				break
			}
		}
		if pick < 0 {
			for done[order[next]] {
				next++
			}
			for k, x := range ready {
				if x == order[next] {
					pick = k
				}
			}
			if pick < 0 {
				pick = 0
			}
		}
		x := ready[pick]
		ready = append(ready[:pick], ready[pick+1:]...)
		done[x] = true
		out = append(out, x)
		for _, b := range m.ins[x] {
			left[b]--
		}
		for _, y := range succs[x] {
			if waits[y]--; waits[y] == 0 {
				insert(y)
			}
		}
	}
	return out
}
