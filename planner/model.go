package planner

import "slices"

// model is the problem as the solvers see it. Values have become buffers
// (memory that one op instance allocates), and everything that Check treats
// specially has become one of few things:
//
//   - a view is no node; its readers read what it views, and emit puts it back
//     where it is needed (what a view itself costs is counted once, so the
//     solvers see a little less than Check where views are made again);
//   - resident memory is a constant; an op that overwrites it (or any other
//     storage) is a node that all instances of the other readers must precede;
//   - effects that must stay in order are control edges.
//
// A sequence of nodes that satisfies the model's rules becomes, through emit,
// an order that Check accepts with the same peak.
type model struct {
	p  *Problem
	al *aliases

	n    int
	op   []int   // by node: op
	cost []int64 // by node
	bias []int64 // by node: cost as the search weighs it (policies)
	must []int32 // nodes that must run at least twice

	toll    []bool    // by buffer: may not be live across a gate
	tolled  bool      // some buffer is
	gate    []bool    // by node
	gates   []int32   // nodes
	limit   [][]int64 // by limit, by buffer: what it weighs there; nil without limits
	atLeast int64     // cost of what gates make run a second time, in any plan
	work    []int64   // by node: workspace bytes
	once    []bool    // by node: may have one instance only, for the solvers

	// The solvers pin more than Check does where memory is shared in ways that
	// they do not follow. Bounds must hold for every plan that Check accepts,
	// so they go by these.
	strict []bool // by node: Check allows one instance only
	loose  []bool // by buffer: its memory may hold several values in turn
	// lost lists, by node that overwrites something resident, the nodes that
	// read what it destroys: none of their instances may come later.
	lost  [][]int32
	exact bool // the rules of the model are the rules of Check

	ins  [][]int32 // by node: buffers read, without repeats
	outs [][]int32 // by node: buffers allocated
	// ins once more, as one list: that of node x is feeds[feedsOf[x]:feedsOf[x+1]]. Walks over what is made of what go this way.
	feeds   []feed
	feedsOf []int32
	pair    [][]reuse // by node: optional in-place reuse, in order of preference

	ctrl  [][]int32 // by node: nodes that must have run before (their only instance)
	ctrlr [][]int32 // the reverse
	until [][]int32 // by node: overwriters that must come after every instance
	since [][]int32 // by overwriter: nodes that must come before it, the reverse of until

	size  []int64   // by buffer
	prod  []int32   // by buffer: node
	final []bool    // by buffer: lives to the end
	users [][]int32 // by buffer: nodes that read it

	order    []int32 // the given order, as nodes
	resident int64   // bytes of resident storages
	base     int64   // cost of every op once
	views    int64   // of that, cost of the eliminated views

	nodeOf []int32 // by op: node, or -1 for an eliminated view
	buf    []int32 // by value: buffer, or -1
	under  []int   // by op: for an eliminated view, one value that it views; else -1
	dead   []bool  // by op: eliminated view that nothing needs
}

type reuse struct{ in, out int32 }

// feed is a buffer that a node reads, and the node that makes it.
type feed struct{ buf, by int32 }

// newModel compiles p, which must be valid.
func newModel(p *Problem) *model {
	m := &model{p: p, al: aliasing(p)}
	prod := p.producers()
	order := p.order()
	nv := len(p.Values)
	m.buf = make([]int32, nv)
	extra := make([]int32, nv) // second buffer that readers of a view node read
	for v := range m.buf {
		m.buf[v], extra[v] = -1, -1
	}
	m.nodeOf = make([]int32, len(p.Ops))
	m.under = make([]int, len(p.Ops))
	m.dead = make([]bool, len(p.Ops))
	overwritten := make([]bool, nv) // by value: something overwrites it in place
	for i := range p.Ops {
		for _, pr := range p.Ops[i].InPlace {
			if m.al.overwrites(pr) {
				overwritten[pr[0]] = true
			}
		}
	}
	for s, size := range m.al.size {
		if m.al.resident[s] {
			m.resident += size
		}
	}
	pinProducer := make([]bool, 0, nv) // by buffer: it must have one instance
	newBuf := func(size int64, node int32) int32 {
		b := int32(len(m.size))
		m.size = append(m.size, size)
		m.prod = append(m.prod, node)
		m.final = append(m.final, false)
		m.users = append(m.users, nil)
		m.loose = append(m.loose, false)
		pinProducer = append(pinProducer, false)
		return b
	}
	uses := make([]int, nv) // ops that read the value
	for i := range p.Ops {
		for k, v := range p.Ops[i].Inputs {
			if !containsInt(p.Ops[i].Inputs[:k], v) {
				uses[v]++
			}
		}
	}
	costly := false
	for _, i := range order {
		o := &p.Ops[i]
		m.nodeOf[i], m.under[i] = -1, -1
		if src := m.eliminable(i); src >= 0 {
			m.under[i] = src
			m.views += o.Cost
			costly = costly || o.Cost > 0
			for _, out := range o.Outputs {
				m.buf[out], extra[out] = m.buf[src], extra[src]
			}
			continue
		}
		node := int32(m.n)
		m.n++
		m.nodeOf[i] = node
		m.op = append(m.op, i)
		m.cost = append(m.cost, o.Cost)
		m.work = append(m.work, o.Workspace)
		m.base += o.Cost
		m.once = append(m.once, o.RunsOnce())
		m.bias = append(m.bias, o.Cost)
		for _, out := range o.Outputs {
			switch p.Values[out].Policy {
			case MustSave:
				m.once[node] = true
			case MustRecompute:
				if uses[out] > 1 {
					m.must = append(m.must, node)
				}
			case PreferSave:
				m.bias[node] = 16 * o.Cost
			case PreferRecompute:
				m.bias[node] = o.Cost / 16
			}
		}
		var ins, outs []int32
		add := func(list []int32, b int32) []int32 {
			if b < 0 {
				return list
			}
			for _, x := range list {
				if x == b {
					return list
				}
			}
			return append(list, b)
		}
		for _, in := range o.Inputs {
			ins = add(ins, m.buf[in])
			ins = add(ins, extra[in])
		}
		var pairs []reuse
		fresh := make(map[int]int32)
		for _, out := range o.Outputs {
			st := m.al.storage[out]
			over, from := false, -1
			for _, pr := range o.InPlace {
				if pr[1] == out && m.al.overwrites(pr) {
					over, from = true, pr[0]
				}
			}
			if from < 0 {
				for _, in := range o.Inputs {
					if m.al.storage[in] == st {
						from = in
						break
					}
				}
			}
			switch {
			case m.al.resident[st]:
				m.buf[out] = newBuf(0, node)
			case over:
				m.buf[out] = newBuf(m.al.size[st], node)
				pairs = append(pairs, reuse{m.buf[from], m.buf[out]})
				pinProducer[m.buf[from]] = true
				pinProducer[m.buf[out]] = true
				m.loose[m.buf[from]] = true
				m.loose[m.buf[out]] = true
			case from >= 0:
				// A view that is a node: memory stays with what it views,
				// which therefore may have one instance only.
				m.buf[out] = newBuf(0, node)
				extra[out] = m.buf[from]
				if extra[from] >= 0 {
					extra[out] = extra[from]
				}
				pinProducer[extra[out]] = true
				pinProducer[m.buf[out]] = true
			default:
				b, ok := fresh[st]
				if !ok {
					b = newBuf(m.al.size[st], node)
					fresh[st] = b
				}
				m.buf[out] = b
			}
			outs = add(outs, m.buf[out])
		}
		for _, pr := range o.InPlace {
			if m.al.overwrites(pr) {
				continue
			}
			in, out := m.buf[pr[0]], m.buf[pr[1]]
			if in >= 0 && extra[pr[0]] < 0 && m.size[in] == m.size[out] && m.size[in] > 0 {
				pairs = append(pairs, reuse{in, out})
			}
		}
		m.ins = append(m.ins, ins)
		m.outs = append(m.outs, outs)
		m.pair = append(m.pair, pairs)
		m.order = append(m.order, node)
		for _, b := range ins {
			m.users[b] = append(m.users[b], node)
		}
	}
	m.strict = append([]bool(nil), m.once...)
	m.base += m.views
	m.exact = !costly
	for b, pin := range pinProducer {
		if pin {
			m.once[m.prod[b]] = true
			m.exact = false
		}
	}
	for v := range p.Values {
		if p.Values[v].Output {
			for _, b := range []int32{m.buf[v], extra[v]} {
				if b >= 0 {
					m.final[b] = true
				}
			}
		}
	}
	for _, ins := range m.ins {
		m.feedsOf = append(m.feedsOf, int32(len(m.feeds)))
		for _, b := range ins {
			m.feeds = append(m.feeds, feed{b, m.prod[b]})
		}
	}
	m.feedsOf = append(m.feedsOf, int32(len(m.feeds)))
	m.addConstraints(prod, order)
	m.findDeadViews(prod, order)
	m.tolls()
	m.bounds()
	return m
}

// eliminable returns a value that op i only views, or -1 if op i is more than a
// view that may be made again.
func (m *model) eliminable(i int) int {
	o := &m.p.Ops[i]
	if o.RunsOnce() || o.Workspace != 0 || len(o.Outputs) == 0 || len(o.InPlace) > 0 || slices.Contains(m.p.Gates, i) {
		return -1
	}
	st := m.al.storage[o.Outputs[0]]
	for _, out := range o.Outputs {
		if m.al.storage[out] != st || m.p.Values[out].Policy != PolicyNone {
			return -1
		}
	}
	src := -1
	for _, in := range o.Inputs {
		switch {
		case m.al.storage[in] == st:
			if src >= 0 && m.buf[in] != m.buf[src] {
				return -1
			}
			src = in
		case m.p.Values[in].Resident && !m.isOverwritten(in):
		default:
			return -1
		}
	}
	return src
}

func (m *model) isOverwritten(v int) bool {
	st := m.al.storage[v]
	return m.al.resident[st] && len(m.al.members[st]) > 1
}

// addConstraints finds overwriters with the readers that must precede them, and
// chains the effects that must keep their order.
func (m *model) addConstraints(prod, order []int) {
	p := m.p
	m.ctrl = make([][]int32, m.n)
	m.ctrlr = make([][]int32, m.n)
	m.until = make([][]int32, m.n)
	m.since = make([][]int32, m.n)
	readers := make([][]int32, len(p.Values)) // nodes that have read the value so far, through views
	direct := make([][]int32, len(p.Values))  // nodes that have read the value itself
	exists := make([]bool, len(p.Values))
	m.lost = make([][]int32, m.n)
	for v := range p.Values {
		exists[v] = p.Values[v].Resident
	}
	last := [4]int32{-1, -1, -1, -1}
	for _, i := range order {
		o := &p.Ops[i]
		node := m.nodeOf[i]
		if node >= 0 {
			for _, in := range o.Inputs {
				direct[in] = append(direct[in], node)
				// emit may make a view right before its reader, so that reads
				// what is under it as well.
				for v := in; ; v = m.under[prod[v]] {
					readers[v] = append(readers[v], node)
					if prod[v] < 0 || m.nodeOf[prod[v]] >= 0 {
						break
					}
				}
			}
			shown := false
			for _, pr := range o.InPlace {
				if !m.al.overwrites(pr) {
					continue
				}
				shown = true
				m.once[node] = true
				if m.al.resident[m.al.storage[pr[0]]] {
					m.strict[node] = true
				}
				for _, v := range m.al.overwritten(p, i, pr) {
					if !exists[v] {
						continue
					}
					exists[v] = false
					if m.strict[node] {
						for _, r := range direct[v] {
							if r != node && !contains(m.lost[node], r) {
								m.lost[node] = append(m.lost[node], r)
							}
						}
					}
					for _, r := range readers[v] {
						if r != node && !contains(m.until[r], node) {
							m.until[r] = append(m.until[r], node)
							m.since[node] = append(m.since[node], r)
						}
					}
				}
			}
			class := 0
			switch o.Effect {
			case EffectComm:
				class = 1
			case EffectHost:
				class = 2
			case EffectReads, EffectWrites:
				if !shown {
					class = 3
				}
			}
			if class > 0 {
				if l := last[class]; l >= 0 {
					m.ctrl[node] = append(m.ctrl[node], l)
					m.ctrlr[l] = append(m.ctrlr[l], node)
				}
				last[class] = node
			}
		}
		for _, out := range o.Outputs {
			exists[out] = true
		}
	}
}

func containsInt(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

func contains(list []int32, x int32) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// findDeadViews marks eliminated views that no node and no output needs.
func (m *model) findDeadViews(prod []int, order []int) {
	needed := make([]bool, len(m.p.Values))
	for v := range needed {
		needed[v] = m.p.Values[v].Output
	}
	for k := len(order) - 1; k >= 0; k-- {
		i := order[k]
		need := m.nodeOf[i] >= 0
		for _, out := range m.p.Ops[i].Outputs {
			need = need || needed[out]
		}
		m.dead[i] = !need
		if need {
			for _, in := range m.p.Ops[i].Inputs {
				needed[in] = true
			}
		}
	}
}

// emit turns a sequence of nodes into an order of ops, with the eliminated
// views put in: each just before its first reader, and again where what it
// views has been recomputed.
func (m *model) emit(seq []int32) []int {
	p := m.p
	prod := p.producers()
	order := make([]int, 0, len(seq)+len(p.Ops)-m.n)
	stamp := make([]int, len(p.Values)) // 1 + position of the latest instance; 0: none or resident
	var deadOn [][]int                  // by value: dead views that read it
	deadOn = make([][]int, len(p.Values))
	for i := range p.Ops {
		if m.dead[i] {
			src := m.under[i]
			deadOn[src] = append(deadOn[src], i)
		}
	}
	var run func(i int)
	run = func(i int) {
		order = append(order, i)
		for _, out := range p.Ops[i].Outputs {
			first := stamp[out] == 0
			stamp[out] = len(order)
			if first {
				at := stamp[out]
				for _, d := range deadOn[out] {
					run(d)
				}
				stamp[out] = at
			}
		}
	}
	var ensure func(v int)
	ensure = func(v int) {
		i := prod[v]
		if i < 0 || m.nodeOf[i] >= 0 {
			return
		}
		fresh := stamp[v] > 0
		for _, in := range p.Ops[i].Inputs {
			ensure(in)
			fresh = fresh && stamp[in] < stamp[v]
		}
		if !fresh {
			run(i)
		}
	}
	for v := range p.Values {
		if p.Values[v].Resident {
			for _, d := range deadOn[v] {
				run(d)
			}
		}
	}
	for _, node := range seq {
		i := m.op[node]
		for _, in := range p.Ops[i].Inputs {
			ensure(in)
		}
		run(i)
	}
	for v := range p.Values {
		if p.Values[v].Output {
			ensure(v)
		}
	}
	return order
}

// footprint returns a lower bound on the memory of any plan: for each op, what
// is live while it runs, and the outputs at the end.
func (m *model) footprint() int64 {
	best := m.resident
	for x := 0; x < m.n; x++ {
		best = max(best, m.workingSet(int32(x)))
	}
	end := m.resident
	held := make([]bool, len(m.al.size))
	for v := range m.p.Values {
		if st := m.al.storage[v]; m.p.Values[v].Output && !m.al.resident[st] && !held[st] {
			held[st] = true
			end += m.al.size[st]
		}
	}
	return max(best, end)
}

// workingSet returns a lower bound on the bytes that are live whenever node x
// runs, residents included: its inputs, outputs and workspace, with as much
// in-place reuse as there can be.
func (m *model) workingSet(x int32) int64 {
	p := m.p
	o := &p.Ops[m.op[x]]
	var seen []int
	s := m.resident + o.Workspace
	count := func(v int) bool {
		st := m.al.storage[v]
		if m.al.resident[st] {
			return false
		}
		for _, y := range seen {
			if y == st {
				return false
			}
		}
		seen = append(seen, st)
		return true
	}
	for _, v := range o.Inputs {
		if count(v) {
			s += m.al.size[m.al.storage[v]]
		}
	}
	for _, v := range o.Outputs {
		if !count(v) {
			continue
		}
		size := m.al.size[m.al.storage[v]]
		for _, pr := range o.InPlace {
			if m.al.storage[pr[1]] == m.al.storage[v] && m.al.size[m.al.storage[pr[0]]] == size {
				size = 0
				break
			}
		}
		s += size
	}
	return s
}
