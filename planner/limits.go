package planner

import "fmt"

// Limit bounds what is kept of some values for backward parts: the sizes of those whose memory is kept
// across some gate add up to at most Bytes. What is kept is what KeptAcross says of a plan. Without gates a
// limit says nothing.
//
// Check measures it on its replay. Solve, MinBudget and Obey decide what inside it is kept: see limitsolve.go.
type Limit struct {
	Name   string
	Values []int // indices of Problem.Values, without repeats
	Bytes  int64 // ≥ 0
}

func (p *Problem) limitName(k int) string {
	if n := p.Limits[k].Name; n != "" {
		return fmt.Sprintf("limit %d %q", k, n)
	}
	return fmt.Sprintf("limit %d", k)
}

func (p *Problem) validateLimits() error {
	for k := range p.Limits {
		l := &p.Limits[k]
		if l.Bytes < 0 {
			return opErr(-1, "%s is of %d bytes", p.limitName(k), l.Bytes)
		}
		seen := make(map[int]bool, len(l.Values))
		for _, v := range l.Values {
			if v < 0 || v >= len(p.Values) {
				return opErr(-1, "%s names value %d; there are values 0 to %d", p.limitName(k), v, len(p.Values)-1)
			}
			if seen[v] {
				return valueErr(v, "%s names %s twice", p.limitName(k), p.valueName(v))
			}
			seen[v] = true
		}
	}
	return nil
}

// limited measures what is kept of each limit's values, in Check's terms.
func (r *replay) limited() []int64 {
	if len(r.p.Limits) == 0 {
		return nil
	}
	kept := make([]bool, len(r.p.Values)) // by representative of the storage
	for _, k := range r.across() {
		kept[r.rootOf[r.inst[k].value]] = true
	}
	out := make([]int64, len(r.p.Limits))
	for k := range r.p.Limits {
		for _, v := range r.p.Limits[k].Values {
			if !r.p.Values[v].Resident && kept[r.rootOf[v]] {
				out[k] += r.p.Values[v].Bytes
			}
		}
	}
	return out
}

// withinLimits applies the limits to a replay.
func (r *replay) withinLimits() *Violation {
	for k, n := range r.limited() {
		if l := &r.p.Limits[k]; n > l.Bytes {
			return r.violation(RuleLimit, -1, -1, -1, "%s: the plan keeps %d bytes of its values across gates, %d are allowed", r.p.limitName(k), n, l.Bytes)
		}
	}
	return nil
}

// bounds gives each buffer its weight in each limit. Where a storage holds several buffers in turn, each
// weighs as much as all values in it: Check counts the storage if any of them is kept.
func (m *model) bounds() {
	p := m.p
	if len(p.Limits) == 0 || len(m.gates) == 0 {
		return
	}
	in := make([][]int32, len(m.al.size)) // by storage: its buffers
	for v := range p.Values {
		if b := m.buf[v]; b >= 0 && !contains(in[m.al.storage[v]], b) {
			in[m.al.storage[v]] = append(in[m.al.storage[v]], b)
		}
	}
	m.limit = make([][]int64, len(p.Limits))
	for k := range p.Limits {
		m.limit[k] = make([]int64, len(m.size))
		for _, v := range p.Limits[k].Values {
			if p.Values[v].Resident || m.al.resident[m.al.storage[v]] {
				continue
			}
			for _, b := range in[m.al.storage[v]] {
				m.limit[k][b] += p.Values[v].Bytes
			}
		}
	}
}

// weighs reports whether buffer b counts in some limit.
func (m *model) weighs(b int32) bool {
	for _, w := range m.limit {
		if w[b] > 0 {
			return true
		}
	}
	return false
}

// ledger is what an annealer's sequence keeps of each limit.
type ledger struct {
	held    []bool  // by buffer that weighs: it is kept across a gate
	used    []int64 // by limit
	flipped []int32 // by the move at hand
}

func (m *model) newLedger(t *timeline) *ledger {
	l := &ledger{held: make([]bool, len(m.size)), used: make([]int64, len(m.limit))}
	for b := range l.held {
		if b := int32(b); m.weighs(b) && t.passes(b) {
			l.flip(m, b)
		}
	}
	l.flipped = l.flipped[:0]
	return l
}

func (l *ledger) flip(m *model, b int32) {
	l.held[b] = !l.held[b]
	for k, w := range m.limit {
		if l.held[b] {
			l.used[k] += w[b]
		} else {
			l.used[k] -= w[b]
		}
	}
	l.flipped = append(l.flipped, b)
}

// overdrawn brings the ledger up to the moves in the log, and reports, with the ledger as it was, whether they
// make something kept that is more than a limit allows.
func (a *annealer) overdrawn() bool {
	t, m, l := a.t, a.m, a.books
	if l == nil {
		return false
	}
	l.flipped = l.flipped[:0]
	look := func(b int32) {
		if m.weighs(b) && t.passes(b) != l.held[b] {
			l.flip(m, b)
		}
	}
	for _, c := range t.log {
		x := c.node
		if c.insert {
			x = t.node[c.inst]
		}
		if m.gate[x] {
			for b := range l.held {
				look(int32(b))
			}
			break
		}
		for _, b := range m.ins[x] {
			look(b)
		}
		for _, b := range m.outs[x] {
			look(b)
		}
	}
	for k, n := range l.used {
		if n > m.p.Limits[k].Bytes {
			a.restore()
			return true
		}
	}
	return false
}

// restore takes back what the last move meant for the ledger.
func (a *annealer) restore() {
	if a.books == nil {
		return
	}
	list := append([]int32(nil), a.books.flipped...)
	for _, b := range list {
		a.books.flip(a.m, b)
	}
	a.books.flipped = a.books.flipped[:0]
}
