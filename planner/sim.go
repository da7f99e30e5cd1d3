package planner

// simulator measures sequences of nodes in the model's terms. It is the
// solvers' own; Check does not use it.
type simulator struct {
	m     *model
	cur   []int32 // by buffer: latest instance, -1 none
	start []int32 // by instance
	last  []int32
	buf   []int32
	ran   []int32 // by node: position of the latest instance, -1 none
	shut  []bool  // by node: may not run again, an overwriter has run
	mem   []int64 // by position
	tooks []int32 // by instance: 1 if its memory has been taken over
}

func newSimulator(m *model) *simulator {
	return &simulator{m: m, cur: make([]int32, len(m.size)), ran: make([]int32, m.n), shut: make([]bool, m.n)}
}

// run measures seq. ok is false if it breaks a rule of the model. After a
// successful run, mem holds the memory at each position.
func (s *simulator) run(seq []int32) (peak, cost int64, ok bool) {
	m := s.m
	for b := range s.cur {
		s.cur[b] = -1
	}
	for x := range s.ran {
		s.ran[x] = -1
		s.shut[x] = false
	}
	s.start, s.last, s.buf = s.start[:0], s.last[:0], s.buf[:0]
	n := len(seq)
	cost = m.views
	for i, x := range seq {
		if s.shut[x] || (s.ran[x] >= 0 && m.once[x]) {
			return 0, 0, false
		}
		for _, y := range m.ctrl[x] {
			if s.ran[y] < 0 {
				return 0, 0, false
			}
		}
		for _, r := range m.since[x] {
			if s.ran[r] < 0 {
				return 0, 0, false
			}
			s.shut[r] = true
		}
		for _, b := range m.ins[x] {
			k := s.cur[b]
			if k < 0 {
				return 0, 0, false
			}
			s.last[k] = int32(i)
		}
		for _, b := range m.outs[x] {
			s.cur[b] = int32(len(s.start))
			s.start = append(s.start, int32(i))
			s.last = append(s.last, int32(i))
			s.buf = append(s.buf, b)
		}
		s.ran[x] = int32(i)
		cost += m.cost[x]
	}
	for x := range s.ran {
		if s.ran[x] < 0 {
			return 0, 0, false
		}
	}
	if cap(s.mem) < n+1 {
		s.mem = make([]int64, n+1, 2*n+1)
	}
	s.mem = s.mem[:n+1]
	for i := range s.mem {
		s.mem[i] = 0
	}
	for b, f := range m.final {
		if f {
			s.last[s.cur[b]] = int32(n - 1)
		}
	}
	for k, b := range s.buf {
		if sz := m.size[b]; sz > 0 {
			s.mem[s.start[k]] += sz
			s.mem[s.last[k]+1] -= sz
		}
	}
	live := m.resident
	for i := 0; i < n; i++ {
		live += s.mem[i]
		s.mem[i] = live + m.work[seq[i]]
	}
	s.mem = s.mem[:n]
	s.reuse(seq)
	for _, b := range s.mem {
		peak = max(peak, b)
	}
	if n == 0 {
		peak = m.resident
	}
	return peak, cost, true
}

// reuse subtracts the outputs that live in the memory of an input while their
// op runs. It replays which instance each reuse pair refers to.
func (s *simulator) reuse(seq []int32) {
	m := s.m
	for b := range s.cur {
		s.cur[b] = -1
	}
	if cap(s.tooks) < len(s.start) {
		s.tooks = make([]int32, len(s.start), 2*len(s.start))
	}
	s.tooks = s.tooks[:len(s.start)]
	for k := range s.tooks {
		s.tooks[k] = 0
	}
	k := int32(0)
	for i, x := range seq {
		first := k
		outs := m.outs[x]
		if len(m.pair[x]) > 0 {
			var taken [8]bool
			for _, pr := range m.pair[x] {
				in := s.cur[pr.in]
				if s.last[in] != int32(i) || s.tooks[in] != 0 || (m.final[pr.in] && s.isLatest(in, seq)) {
					continue
				}
				for j, b := range outs {
					if b == pr.out && j < len(taken) && !taken[j] {
						taken[j] = true
						s.tooks[in] = 1
						s.mem[i] -= m.size[b]
					}
				}
			}
		}
		for j, b := range outs {
			s.cur[b] = first + int32(j)
		}
		k += int32(len(outs))
	}
}

// isLatest reports whether instance k is the last one of its buffer.
func (s *simulator) isLatest(k int32, seq []int32) bool {
	return s.ran[s.m.prod[s.buf[k]]] == s.start[k]
}
