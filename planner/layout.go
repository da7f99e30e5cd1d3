package planner

import "reprise/planner/pack"

// lifetimes returns the stretches of memory that an order needs, without
// offsets: residents, storages (those that in-place reuse joins as one) and
// workspaces. The order must be legal.
func lifetimes(p *Problem, order []int) []Placement {
	al := aliasing(p)
	type stretch struct {
		value, start, last int
		bytes              int64
		next               int // stretch that took its memory, or -1
		taken              bool
	}
	var list []stretch
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
			list[cur[v]].last = max(list[cur[v]].last, pos)
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
			list[place[k]].last = max(list[place[k]].last, pos)
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
	var out []Placement
	for k := range list {
		s := &list[k]
		if s.taken || s.bytes == 0 {
			continue
		}
		end := s.last
		for n := s.next; n >= 0; n = list[n].next {
			end = list[n].last
		}
		out = append(out, Placement{Value: s.value, Start: s.start, End: end, Bytes: s.bytes})
	}
	for pos, i := range order {
		if w := p.Ops[i].Workspace; w > 0 {
			out = append(out, Placement{Value: -1, Start: pos, End: pos, Bytes: w})
		}
	}
	return out
}

// layout gives a plan offsets. align applies to every placement; 0 is 1.
func layout(p *Problem, plan *Plan, align int64) error {
	pls := lifetimes(p, plan.Order)
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
