package planner

// aliases is the memory that values live in, after resident inputs that are
// overwritten have been joined with what overwrites them.
type aliases struct {
	storage  []int   // by value: dense storage index
	size     []int64 // by storage
	resident []bool  // by storage
	members  [][]int // by storage: its values, ascending
}

// aliasing computes the storages of p. The indices in Problem.Ops must be in
// range; nothing else is assumed.
func aliasing(p *Problem) *aliases {
	n := len(p.Values)
	parent := make([]int, n)
	for i := range parent {
		parent[i] = i
	}
	find := func(v int) int {
		for parent[v] != v {
			parent[v] = parent[parent[v]]
			v = parent[v]
		}
		return v
	}
	join := func(a, b int) {
		if a, b = find(a), find(b); a != b {
			parent[max(a, b)] = min(a, b)
		}
	}
	first := make(map[int]int)
	for v := range p.Values {
		s := p.Values[v].Storage
		if s == 0 {
			continue
		}
		if w, ok := first[s]; ok {
			join(v, w)
		} else {
			first[s] = v
		}
	}
	// An overwrite of something that is itself on resident memory stays on
	// that memory, so a chain of updates needs the order of the ops; repeating
	// until nothing changes needs no order.
	resident := func(v int) bool { return p.Values[v].Resident }
	isRes := make([]bool, n)
	for v := range p.Values {
		if resident(v) {
			isRes[find(v)] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range p.Ops {
			for _, pair := range p.Ops[i].InPlace {
				a, b := find(pair[0]), find(pair[1])
				if a != b && isRes[a] && p.Values[pair[1]].Storage == 0 {
					r := isRes[a] || isRes[b]
					join(a, b)
					isRes[find(a)] = r
					changed = true
				}
			}
		}
	}
	al := &aliases{storage: make([]int, n)}
	dense := make([]int, n)
	for v := range dense {
		dense[v] = -1
	}
	for v := range p.Values {
		r := find(v)
		if dense[r] < 0 {
			dense[r] = len(al.size)
			al.size = append(al.size, 0)
			al.resident = append(al.resident, false)
			al.members = append(al.members, nil)
		}
		s := dense[r]
		al.storage[v] = s
		al.members[s] = append(al.members[s], v)
		al.size[s] = max(al.size[s], p.Values[v].Offset+p.Values[v].Bytes)
		al.resident[s] = al.resident[s] || isRes[r]
	}
	return al
}

// overwrites reports whether the in-place pair destroys its input, as opposed
// to being allowed to reuse its memory.
func (al *aliases) overwrites(pair [2]int) bool {
	return al.storage[pair[0]] == al.storage[pair[1]]
}

// overwritten lists the values that are lost when op i runs the overwriting
// pair: those in the same storage whose bytes overlap with the output's. The
// outputs of the op itself are not among them.
func (al *aliases) overwritten(p *Problem, i int, pair [2]int) []int {
	out := &p.Values[pair[1]]
	lo, hi := out.Offset, out.Offset+out.Bytes
	lost := []int{pair[0]}
	for _, v := range al.members[al.storage[pair[1]]] {
		w := &p.Values[v]
		if v == pair[0] || w.Offset >= hi || w.Offset+w.Bytes <= lo {
			continue
		}
		mine := false
		for _, o := range p.Ops[i].Outputs {
			mine = mine || o == v
		}
		if !mine {
			lost = append(lost, v)
		}
	}
	return lost
}
