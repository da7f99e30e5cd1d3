package planner

import "math"

// flowNet is a network for maximum flow with integer capacities (Dinic, 1970).
// Edges come in pairs: e and e^1 are each other's reverse.
type flowNet struct {
	nodes int
	from  []int32
	to    []int32
	cap   []int64 // residual capacity
	first []int32 // CSR: edges of node v are adj[first[v]:first[v+1]]
	adj   []int32

	level []int32
	iter  []int32
	queue []int32
	path  []int32
}

// unbounded stands for an edge that may not be cut. Finite capacities of a
// network add up to less.
const unbounded = math.MaxInt64 / 4

func (g *flowNet) edge(a, b int32, c int64) int32 {
	e := int32(len(g.to))
	g.from = append(g.from, a, b)
	g.to = append(g.to, b, a)
	g.cap = append(g.cap, c, 0)
	return e
}

// index builds the adjacency lists; no edge may be added afterwards.
func (g *flowNet) index() {
	g.first = make([]int32, g.nodes+1)
	for _, a := range g.from {
		g.first[a+1]++
	}
	for v := 0; v < g.nodes; v++ {
		g.first[v+1] += g.first[v]
	}
	g.adj = make([]int32, len(g.to))
	at := append([]int32(nil), g.first[:g.nodes]...)
	for e, a := range g.from {
		g.adj[at[a]] = int32(e)
		at[a]++
	}
	g.level = make([]int32, g.nodes)
	g.iter = make([]int32, g.nodes)
}

// augment raises the flow from s to t to its maximum and returns how much was
// added. It stops early, with a valid flow, once the total reaches limit.
func (g *flowNet) augment(s, t int32, limit int64) int64 {
	var total int64
	for total < limit && g.levels(s, t) {
		copy(g.iter, g.first[:g.nodes])
		total += g.block(s, t)
	}
	return total
}

// levels sets level to the distance to t in the residual network.
func (g *flowNet) levels(s, t int32) bool {
	for v := range g.level {
		g.level[v] = -1
	}
	g.level[t] = 0
	g.queue = append(g.queue[:0], t)
	for k := 0; k < len(g.queue); k++ {
		v := g.queue[k]
		if v == s {
			return true
		}
		d := g.level[v] + 1
		for _, e := range g.adj[g.first[v]:g.first[v+1]] {
			u := g.to[e]
			if g.level[u] < 0 && g.cap[e^1] > 0 {
				g.level[u] = d
				g.queue = append(g.queue, u)
			}
		}
	}
	return g.level[s] >= 0
}

// block adds a blocking flow along edges that lead one level down.
func (g *flowNet) block(s, t int32) int64 {
	var total int64
	path := g.path[:0]
	v := s
	for {
		if v == t {
			push := int64(math.MaxInt64)
			for _, e := range path {
				push = min(push, g.cap[e])
			}
			cut := len(path)
			for k := len(path) - 1; k >= 0; k-- {
				e := path[k]
				g.cap[e] -= push
				g.cap[e^1] += push
				if g.cap[e] == 0 {
					cut = k
				}
			}
			total += push
			if total >= unbounded {
				g.path = path
				return total
			}
			v = g.from[path[cut]]
			path = path[:cut]
			continue
		}
		advanced := false
		for g.iter[v] < g.first[v+1] {
			e := g.adj[g.iter[v]]
			if g.cap[e] > 0 && g.level[g.to[e]] == g.level[v]-1 {
				path = append(path, e)
				v = g.to[e]
				advanced = true
				break
			}
			g.iter[v]++
		}
		if advanced {
			continue
		}
		if v == s {
			g.path = path
			return total
		}
		g.level[v] = -1
		e := path[len(path)-1]
		path = path[:len(path)-1]
		v = g.from[e]
		g.iter[v]++
	}
}

// sourceSide marks what can be reached from s in the residual network: the
// smallest source side of a minimum cut, after augment.
func (g *flowNet) sourceSide(s int32, side []bool) {
	for v := range side {
		side[v] = false
	}
	side[s] = true
	g.queue = append(g.queue[:0], s)
	for k := 0; k < len(g.queue); k++ {
		v := g.queue[k]
		for _, e := range g.adj[g.first[v]:g.first[v+1]] {
			if u := g.to[e]; g.cap[e] > 0 && !side[u] {
				side[u] = true
				g.queue = append(g.queue, u)
			}
		}
	}
}
