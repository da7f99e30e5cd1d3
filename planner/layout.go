package planner

import "reprise/planner/pack"

// stretch is memory between its allocation and its last use.
type stretch struct {
	value       int // first value in it
	start, last int
	uses        []int // positions, ascending; of residents not kept
	bytes       int64
	next        int  // stretch that took its memory in place, or -1
	taken       bool // lives in another's memory
}

// stretches returns the memory that an order needs, workspaces aside. The order must be legal.
func stretches(p *Problem, order []int) []stretch {
	al := aliasing(p)
	var list []stretch
	use := func(k, pos int) {
		s := &list[k]
		s.last = max(s.last, pos)
		if n := len(s.uses); s.start >= 0 && (n == 0 || s.uses[n-1] != pos) {
			s.uses = append(s.uses, pos)
		}
	}
	cur := make([]int, len(p.Values))
	resident := make([]int, len(al.size))
	for s := range resident {
		resident[s] = -1
	}
	for v := range p.Values {
		cur[v] = -1
		if s := al.storage[v]; p.Values[v].Resident {
			if resident[s] < 0 {
				resident[s] = len(list)
				list = append(list, stretch{value: v, start: -1, last: max(len(order)-1, 0), bytes: al.size[s], next: -1})
			}
			cur[v] = resident[s]
		}
	}
	type site struct{ pos, in, out int }
	var sites []site
	opened := make(map[int]int)
	for pos, i := range order {
		o := &p.Ops[i]
		for _, v := range o.Inputs {
			use(cur[v], pos)
		}
		clear(opened)
		place := make([]int, len(o.Outputs))
		for k, out := range o.Outputs {
			st := al.storage[out]
			place[k] = -1
			for _, in := range o.Inputs {
				if al.storage[in] == st {
					place[k] = cur[in]
					break
				}
			}
			if place[k] < 0 {
				id, ok := opened[st]
				if !ok {
					id = len(list)
					opened[st] = id
					list = append(list, stretch{value: out, start: pos, last: pos, bytes: al.size[st], next: -1})
				}
				place[k] = id
			}
		}
		for _, pr := range o.InPlace {
			if !al.overwrites(pr) {
				for k, out := range o.Outputs {
					if out == pr[1] {
						sites = append(sites, site{pos, cur[pr[0]], place[k]})
					}
				}
			}
		}
		for k, out := range o.Outputs {
			cur[out] = place[k]
			use(place[k], pos)
		}
	}
	holds := make([]bool, len(list))
	for v := range p.Values {
		if p.Values[v].Output {
			holds[cur[v]] = true
			list[cur[v]].last = len(order) - 1
		}
	}
	for _, s := range sites {
		a, b := &list[s.in], &list[s.out]
		if s.in != s.out && a.start >= 0 && a.last == s.pos && b.start == s.pos && a.bytes == b.bytes &&
			a.next < 0 && !b.taken && !holds[s.in] {
			a.next, b.taken = s.out, true
		}
	}
	return list
}

// lifetimes returns the stretches of memory that a plan needs, without offsets: residents,
// storages (those that in-place reuse joins as one, cut where transfers take them away) and
// workspaces. The plan must be legal.
func lifetimes(p *Problem, plan *Plan) []Placement {
	list := stretches(p, plan.Order)
	away := make(map[[2]int][]Transfer)
	for _, t := range plan.Transfers {
		away[[2]int{t.Value, t.Start}] = append(away[[2]int{t.Value, t.Start}], t)
	}
	var out []Placement
	for k := range list {
		s := &list[k]
		if s.taken || s.bytes == 0 {
			continue
		}
		start := s.start
		for n := k; n >= 0; n = list[n].next {
			for _, t := range away[[2]int{list[n].value, list[n].start}] {
				if t.Free > start {
					out = append(out, Placement{Value: s.value, Start: start, End: t.Free - 1, Bytes: s.bytes})
				}
				start = t.In
			}
			if list[n].next < 0 {
				out = append(out, Placement{Value: s.value, Start: start, End: list[n].last, Bytes: s.bytes})
			}
		}
	}
	for pos, i := range plan.Order {
		if w := p.Ops[i].Workspace; w > 0 {
			out = append(out, Placement{Value: -1, Start: pos, End: pos, Bytes: w})
		}
	}
	return out
}

// layout gives a plan offsets. align applies to every placement; 0 is 1.
func layout(p *Problem, plan *Plan, align int64) error {
	pls := lifetimes(p, plan)
	items := make([]pack.Item, len(pls))
	for k, pl := range pls {
		items[k] = pack.Item{Start: pl.Start, End: pl.End, Size: pl.Bytes, Align: align}
	}
	// The search stops at the lower bound; the steps keep it within about a
	// second where it does not get there.
	res, err := pack.Search(items, pack.Options{Steps: 40_000_000 / int64(len(items)+1000)})
	if err != nil {
		return err
	}
	for k := range pls {
		pls[k].Offset = res.Offsets[k]
	}
	if pls == nil {
		pls = []Placement{}
	}
	plan.Offsets = pls
	plan.ArenaBytes = res.Arena
	return nil
}
