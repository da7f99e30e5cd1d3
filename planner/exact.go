package planner

import "container/heap"

// exactLimit is how many nodes and buffers the exhaustive search takes.
const exactLimit = 24

// exact finds the cheapest plan by a shortest-path search (Dijkstra) over the
// states (what has run, what is in memory). It returns the cost and a sequence,
// or ok = false if there is none, or limit states were not enough (then known
// is false). The model must be exact and small.
func exact(m *model, budget int64, limit int, stop func() bool) (seq []int32, cost int64, known bool) {
	if !m.exact || m.n > exactLimit || len(m.size) > exactLimit {
		return nil, 0, false
	}
	all := uint32(1)<<m.n - 1
	var goal uint32
	for b, f := range m.final {
		if f {
			goal |= 1 << b
		}
	}
	ins := make([]uint32, m.n)
	outs := make([]uint32, m.n)
	before := make([]uint32, m.n)
	closed := make([]uint32, m.n) // overwriters after which the node may not run
	for x := 0; x < m.n; x++ {
		for _, b := range m.ins[x] {
			ins[x] |= 1 << b
		}
		for _, b := range m.outs[x] {
			outs[x] |= 1 << b
		}
		for _, y := range m.ctrl[x] {
			before[x] |= 1 << y
		}
		for _, y := range m.since[x] {
			before[x] |= 1 << y
		}
		for _, y := range m.until[x] {
			closed[x] |= 1 << y
		}
	}
	if m.limit != nil && len(m.gates) > 1 {
		return nil, 0, false // what an earlier gate let pass is no part of a state
	}
	var toll, weighed uint32 // buffers that may not pass a gate, and those of limits
	for b := range m.size {
		if m.toll[b] {
			toll |= 1 << b
		}
		if m.weighs(int32(b)) {
			weighed |= 1 << b
		}
	}
	allowed := func(set uint32) bool {
		for k, w := range m.limit {
			var n int64
			for b := range w {
				if set>>b&1 != 0 {
					n += w[b]
				}
			}
			if n > m.p.Limits[k].Bytes {
				return false
			}
		}
		return true
	}
	bytes := func(set uint32) int64 {
		total := m.resident
		for b := 0; set != 0; b++ {
			if set&1 != 0 {
				total += m.size[b]
			}
			set >>= 1
		}
		return total
	}
	type state struct{ ran, live uint32 }
	type reached struct {
		cost int64
		from state
		node int32 // what ran to get here, -1 for a release
	}
	seen := map[state]reached{}
	var queue exactQueue
	count := 0
	push := func(s, from state, node int32, cost int64) {
		if old, ok := seen[s]; ok && old.cost <= cost {
			return
		}
		seen[s] = reached{cost, from, node}
		count++
		heap.Push(&queue, exactItem{cost: cost, ran: s.ran, live: s.live, seq: count})
	}
	start := state{}
	push(start, start, -1, m.views)
	for len(queue) > 0 {
		it := heap.Pop(&queue).(exactItem)
		s := state{it.ran, it.live}
		if seen[s].cost < it.cost {
			continue
		}
		if s.ran == all && s.live&goal == goal {
			for s != start {
				r := seen[s]
				if r.node >= 0 {
					seq = append(seq, r.node)
				}
				s = r.from
			}
			for i, j := 0, len(seq)-1; i < j; i, j = i+1, j-1 {
				seq[i], seq[j] = seq[j], seq[i]
			}
			return seq, it.cost, true
		}
		if len(seen) > limit || (count&255 == 0 && stop()) {
			return nil, 0, false
		}
		// Release one buffer.
		for b := 0; b < len(m.size); b++ {
			if s.live>>b&1 != 0 {
				push(state{s.ran, s.live &^ (1 << b)}, s, -1, it.cost)
			}
		}
		for x := 0; x < m.n; x++ {
			if s.live&ins[x] != ins[x] || s.ran&before[x] != before[x] || s.ran&closed[x] != 0 ||
				(m.once[x] && s.ran>>x&1 != 0) {
				continue
			}
			next := state{s.ran | 1<<x, s.live | outs[x]}
			need := bytes(s.live|outs[x]) + m.work[x]
			// A live output that is made again needs memory of its own while
			// the old one is there; releasing it first is never worse.
			if s.live&outs[x] != 0 {
				continue
			}
			// reach pushes what follows the run of x if the memory of some inputs is taken over. At a gate, what may not
			// pass it is gone then, and what x itself read may be.
			reach := func(taken uint32) {
				if !m.gate[x] || s.ran>>x&1 != 0 {
					push(state{next.ran, next.live &^ taken}, s, int32(x), it.cost+m.cost[x])
					return
				}
				kept := s.live &^ taken &^ toll
				mine := kept & ins[x] & weighed
				for less := mine; ; less = (less - 1) & mine {
					if allowed(kept &^ less) {
						push(state{next.ran, kept&^less | outs[x]}, s, int32(x), it.cost+m.cost[x])
					}
					if less == 0 {
						break
					}
				}
			}
			if need <= budget {
				reach(0)
			}
			if len(m.pair[x]) == 0 {
				continue
			}
			// In place: try every subset of the pairs that is a matching.
			pairs := m.pair[x]
			for pick := uint32(1); pick < 1<<min(len(pairs), 8); pick++ {
				var in, out uint32
				var saved int64
				match := true
				for k := range pairs {
					if k >= 8 || pick>>k&1 == 0 {
						continue
					}
					i, o := uint32(1)<<pairs[k].in, uint32(1)<<pairs[k].out
					if in&i != 0 || out&o != 0 {
						match = false
						break
					}
					in |= i
					out |= o
					saved += m.size[pairs[k].out]
				}
				if match && need-saved <= budget {
					reach(in)
				}
			}
		}
	}
	return nil, 0, true
}

type exactItem struct {
	cost int64
	ran  uint32
	live uint32
	seq  int
}

type exactQueue []exactItem

func (q exactQueue) Len() int { return len(q) }
func (q exactQueue) Less(a, b int) bool {
	if q[a].cost != q[b].cost {
		return q[a].cost < q[b].cost
	}
	return q[a].seq < q[b].seq
}
func (q exactQueue) Swap(a, b int) { q[a], q[b] = q[b], q[a] }
func (q *exactQueue) Push(x any)   { *q = append(*q, x.(exactItem)) }
func (q *exactQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
