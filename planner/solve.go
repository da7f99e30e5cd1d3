package planner

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Options steer Solve. The zero value is a good default.
type Options struct {
	Budget    int64         // bytes; ≤ 0 means no limit
	Steps     int64         // work to spend, in steps; 0 chooses by the size of the problem
	TimeLimit time.Duration // wall time after which the best plan so far is returned; 0 is none. A plan that was cut off by time need not be reproducible.
	Threads   int           // solvers that may run at once; 0 is 1. The plan does not depend on it.
	Seed      uint64
	Gap       float64  // stop at a plan whose Gap is at most this; 0 searches until it is proven best or Steps are spent
	Layout    bool     // give offsets, and make the arena fit the budget as well
	Align     int64    // alignment of offsets if Layout; 0 is 1
	Known     *Known   // what searches of the same problem share; nil: nothing
	Quick     bool     // look for the smallest plan from one end only, in a quarter of the time
	Start     []int    // an order of op instances to begin with, as in Plan.Order; where it breaks a rule or the budget it is not used
	Without   []string // names of solvers that do not run; see Solvers
	Progress  func(Progress)
	Checked   func(time.Duration) // is told how long each check of a plan took, also from several goroutines at once
}

// Solvers lists what Options.Without can name, in the order in which they run. What is not listed always runs: the
// order without recomputation, greedy, and the bound by one cut.
func Solvers() []string { return slices.Clone(solvers[:]) }

const (
	solverExhaustive = "exhaustive" // all plans of problems of up to 12 ops
	solverChain      = "chain"      // the dynamic programme for chains
	solverGuided     = "guided"     // greedy that keeps what the best cut keeps
	solverInteger    = "integer"    // the integer version of that cut, and greedy that keeps what it keeps
	solverProof      = "proof"      // search over states, in which few ops may run again
	solverTape       = "tape"       // annealing of orders from scratch
	solverAlike      = "alike"      // what helps one of many like layers is done in all of them
	solverAnneal     = "anneal"     // annealing of the best plan
	solverTwoCuts    = "two-cuts"   // a bound: branch and bound over two cuts in a row
)

var solvers = [...]string{solverExhaustive, solverChain, solverGuided, solverInteger, solverProof, solverTape, solverAlike, solverAnneal, solverTwoCuts}

// on reports whether a solver runs.
func (s *search) on(name string) bool { return !slices.Contains(s.opt.Without, name) }

// check is Check under the eyes of o.Checked.
func (o *Options) check(p *Problem, plan *Plan, budget int64) (Report, error) {
	start := time.Now()
	rep, err := Check(p, plan, budget)
	if o.Checked != nil {
		o.Checked(time.Since(start))
	}
	return rep, err
}

// Known is what searches of one problem find that is the same at every budget and for any number of steps: the
// smallest plan. Searches that share one look for it once, and return what they would return alone. The
// zero value knows nothing. Searches that run at the same time may not share one, and the problem may not
// change between them.
type Known struct {
	problem *Problem
	seed    uint64
	small   smallPlan

	of   *Problem // a problem with limits, and what is known of it without them
	free *Problem
	rest *Known
}

// Peak is the smallest peak that was found, in bytes; 0 where none was looked for yet.
func (k *Known) Peak() int64 {
	if k.problem == nil {
		return 0
	}
	return k.small.peak
}

// smallPlan is what findSmallest found.
type smallPlan struct {
	seq   []int32
	peak  int64
	steps int64 // that it took
}

// Progress is what Solve reports while it works.
type Progress struct {
	Solver     string
	Elapsed    time.Duration
	Steps      int64
	Best       int64 // cost of the best plan so far, or -1
	LowerBound int64
	Gap        float64 // as in Plan, or NaN while there is no plan
}

// SaveAll returns the plan that keeps the given order and computes nothing
// twice. It panics on a problem that Validate rejects; Solve does not.
func SaveAll(p *Problem) *Plan {
	plan, err := saveAll(p)
	if err != nil {
		panic("BUG: SaveAll of an invalid problem: " + err.Error())
	}
	return plan
}

func saveAll(p *Problem) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	start := time.Now()
	plan := &Plan{Order: append([]int{}, p.order()...), Solver: "save-all", Proof: ProofBase}
	// Not Check: this plan is the yardstick even where policies ask for
	// something else.
	r := newReplay(p, plan.Order)
	if v := r.run(); v != nil {
		return nil, v
	}
	rep, v := r.measure(nil)
	if v != nil {
		return nil, v
	}
	plan.fill(rep)
	plan.LowerBound = rep.BaseCost
	plan.BudgetBytes = rep.PeakBytes
	plan.Seconds = time.Since(start).Seconds()
	plan.finish()
	return plan, nil
}

func (pl *Plan) fill(rep Report) {
	pl.Cost, pl.BaseCost, pl.PeakBytes = rep.Cost, rep.BaseCost, rep.PeakBytes
	pl.ArenaBytes = max(pl.ArenaBytes, rep.PeakBytes)
}

// Solve returns the cheapest plan that it finds within opt.Budget, with a lower
// bound. The plan has passed Check. If ctx is done or time is up, the best plan
// so far is returned. The error is an *InfeasibleError if no plan was found, a
// *ProblemError if p is not valid, or ctx.Err() if there was no time to find
// any plan.
func Solve(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	for _, name := range opt.Without {
		if !slices.Contains(solvers[:], name) {
			return nil, fmt.Errorf("planner: Options.Without: there is no solver %q: there are %s", name, strings.Join(solvers[:], ", "))
		}
	}
	if len(p.Limits) > 0 {
		return solveLimits(ctx, p, opt)
	}
	if p.Offload != nil {
		return solveOffload(ctx, p, opt)
	}
	if err := noLink(p); err != nil {
		return nil, err
	}
	if err := recomputable(p); err != nil {
		return nil, err
	}
	s := newSearch(ctx, p, opt)
	return s.solve()
}

// MinBudget returns the plan with the smallest peak that it finds, whatever it
// costs. Its LowerBound is about cost at that budget.
func MinBudget(ctx context.Context, p *Problem) (*Plan, error) {
	return MinBudgetOptions(ctx, p, Options{})
}

// MinBudgetOptions is MinBudget with options; Budget is not read.
func MinBudgetOptions(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if len(p.Limits) > 0 {
		return leastLimits(ctx, p, opt)
	}
	if p.Offload != nil {
		plan, err := minOffload(ctx, p, opt)
		if err != nil {
			return nil, err
		}
		plan.BudgetBytes = plan.PeakBytes
		return plan, nil
	}
	if err := noLink(p); err != nil {
		return nil, err
	}
	if err := recomputable(p); err != nil {
		return nil, err
	}
	s := newSearch(ctx, p, opt)
	seq, err := s.least()
	if err != nil {
		return nil, err
	}
	plan, err := s.plan(seq, "min-budget")
	if err != nil {
		return nil, err
	}
	plan.BudgetBytes = max(plan.PeakBytes, plan.ArenaBytes)
	return plan, nil
}

// search is one call of Solve.
type search struct {
	ctx     context.Context
	p       *Problem
	m       *model
	opt     Options
	start   time.Time
	sim     *simulator
	orders  [][]int32 // orders of first runs to start from
	best    []int32
	cost    int64 // of best
	key     int64 // of best, as policies weigh it
	solver  string
	lower   int64
	proof   string
	steps   int64
	kin     *kin
	swept   sweepResult
	tried   int64 // cost of the plan that a proof was tried for
	chained bool  // the problem is a chain
	hard    bool  // constructive solvers and bound are far apart

	before     []int32 // best before annealing of an array, which may lead into another valley
	beforeCost int64

	found   smallPlan // once it was looked for
	lowSeq  []int32   // smallest peak seen
	lowPeak int64
}

func newSearch(ctx context.Context, p *Problem, opt Options) *search {
	if opt.Budget <= 0 {
		opt.Budget = unlimited
	}
	m := newModel(p)
	s := &search{ctx: ctx, p: p, m: m, opt: opt, start: time.Now(), sim: newSimulator(m), cost: math.MaxInt64,
		lower: m.base + m.atLeast, proof: ProofBase}
	s.orders = [][]int32{m.order}
	if r := reorder(m, m.order); !sameSeq(r, m.order) {
		s.orders = append(s.orders, r)
	}
	return s
}

func sameSeq(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (s *search) stopped() bool {
	return s.ctx.Err() != nil || (s.opt.TimeLimit > 0 && time.Since(s.start) >= s.opt.TimeLimit)
}

// offer makes seq the best plan if it fits and is cheaper.
func (s *search) offer(seq []int32, solver string) bool {
	if seq == nil {
		return false
	}
	seq = s.again(seq)
	peak, cost, ok := s.sim.run(seq)
	if !ok || peak > s.opt.Budget || !s.obeys(seq) {
		return false
	}
	key := s.m.weigh(seq)
	if s.best != nil && key >= s.key {
		return false
	}
	s.best, s.cost, s.key, s.solver = append([]int32{}, seq...), cost, key, solver
	s.report(solver)
	return true
}

// weigh is what seq costs as policies weigh it.
func (m *model) weigh(seq []int32) int64 {
	sum := m.views
	for _, x := range seq {
		sum += m.bias[x]
	}
	return sum
}

// again gives nodes that must run twice, and do not, a second run right before
// the last reader of what they compute.
func (s *search) again(seq []int32) []int32 {
	seq = s.m.repaid(seq)
	if len(s.m.must) == 0 {
		return seq
	}
	if _, _, ok := newSimulator(s.m).run(seq); !ok { // its own: smallest plans are looked for on several threads
		return seq
	}
	a := newAnnealer(s.m, seq, s.opt.Budget, s.opt.Seed)
	for _, x := range s.m.must {
		if len(a.t.runs[x]) > 1 {
			continue
		}
		last := int32(-1)
		for _, u := range s.m.outs[x] {
			if r := a.t.reads[u]; len(r) > 0 && (last < 0 || a.t.slot[r[len(r)-1]] > a.t.slot[last]) {
				last = r[len(r)-1]
			}
		}
		a.puts = 0
		if last >= 0 {
			a.again(x, last, 0)
		}
	}
	return a.t.sequence()
}

func (s *search) report(solver string) {
	if s.opt.Progress == nil {
		return
	}
	pr := Progress{Solver: solver, Elapsed: time.Since(s.start), Steps: s.steps, Best: -1, LowerBound: s.lower, Gap: math.NaN()}
	if s.best != nil {
		pr.Best = s.cost
		if s.m.base > 0 {
			pr.Gap = float64(s.cost-s.lower) / float64(s.m.base)
		}
	}
	s.opt.Progress(pr)
}

// unlimited is the budget of a search that has none.
const unlimited = math.MaxInt64 / 4

// claimed is the budget that a plan names: 0 is none.
func claimed(budget int64) int64 {
	if budget == unlimited {
		return 0
	}
	return budget
}

func (s *search) solve() (*Plan, error) {
	asked := s.opt.Budget
	var lower int64 // the bound of the first round is about what was asked for, later ones are about less
	var proof string
	for {
		s.best, s.cost = nil, math.MaxInt64
		s.attempt()
		if proof == "" {
			lower, proof = s.lower, s.proof
		}
		if s.best == nil {
			return nil, s.infeasible(asked)
		}
		plan, err := s.plan(s.best, s.solver)
		if err != nil {
			return nil, err
		}
		plan.BudgetBytes, plan.LowerBound, plan.Proof = claimed(asked), lower, proof
		plan.finish()
		if !s.opt.Layout || plan.ArenaBytes <= asked {
			if _, err := s.opt.check(s.p, plan, asked); err != nil {
				return nil, fmt.Errorf("planner: BUG: a solver made an illegal plan: %w", err)
			}
			return plan, nil
		}
		// The layout has holes: plan again with less, so that it fits.
		s.opt.Budget = min(s.opt.Budget-(plan.ArenaBytes-asked), plan.PeakBytes-1)
	}
}

// attempt looks for plans within s.opt.Budget, from the quick solvers to the
// slow ones, until one meets the bound or the steps are spent.
func (s *search) attempt() {
	if s.opt.Budget < s.m.footprint() {
		return
	}
	for _, o := range s.orders {
		s.offer(o, "save-all")
	}
	if s.done() {
		return
	}
	s.offer(s.m.nodes(s.opt.Start), "start")
	for _, o := range s.orders {
		for _, v := range greedyVariants {
			if s.best != nil && (s.stopped() || (s.steps >= s.allowance()/8 && !v.online)) {
				break
			}
			s.offer(s.greedy(o, s.opt.Budget, v, nil), v.name)
		}
	}
	if s.exhaust() {
		return
	}
	s.chain()
	s.bound()
	if s.done() || !s.swept.possible {
		return
	}
	s.guided()
	if s.done() {
		return
	}
	s.integer()
	if s.done() {
		return
	}
	if s.best == nil {
		s.below()
	}
	s.prove()
	if s.done() {
		return
	}
	s.hard = s.m.n <= 2*tapeLimit && (s.best == nil || s.cost-s.lower > s.m.base/200)
	if s.hard && s.m.n > tapeLimit {
		s.guided() // there are steps for more of it now
	}
	if s.hard && s.m.n <= tapeLimit && s.on(solverTape) {
		s.before, s.beforeCost = s.best, s.cost
		s.tapes()
		if s.done() {
			return
		}
	}
	s.alike()
	if s.done() {
		return
	}
	s.anneal()
	if s.best == nil {
		// Where views cost something, Check may also see reuse that the
		// simulator does not, so it decides.
		seq, err := s.least()
		if err != nil {
			return
		}
		if rep, err := s.opt.check(s.p, &Plan{Order: s.m.emit(seq)}, s.opt.Budget); err == nil {
			s.best, s.cost, s.key, s.solver = seq, rep.Cost, s.m.weigh(seq), "min-budget"
			s.anneal()
		}
	}
	s.prove() // the best plan may be another one than before
	if s.done() {
		return
	}
	s.path()
}

// path raises the bound by two cuts in a row, where one is far from the plan.
func (s *search) path() {
	r := &s.swept
	if !s.on(solverTwoCuts) || !s.hard || r.cut == nil || r.best.over.p == 0 || s.best == nil || s.stopped() || s.cost-s.lower <= s.m.base/200 {
		return
	}
	work := s.allowance() * 64 / 2
	if work < pathLooks*int64(s.m.n+len(s.m.feeds)) {
		return // the first look at all second cuts takes more
	}
	p := newPathCut(s.m, s.kin, r.node, s.opt.Budget)
	l := p.run(float64(r.best.over.p)/float64(r.cut.q), s.cost-s.m.base, work, s.stopped)
	s.steps += p.work / 64
	if l += s.m.base; l > s.lower {
		s.lower, s.proof = l, ProofCutPath
		s.report("two-cuts")
	}
}

// nodes is an order of op instances as the solvers see it, nil where there is none.
func (m *model) nodes(order []int) []int32 {
	var seq []int32
	for _, i := range order {
		if i < 0 || i >= len(m.nodeOf) {
			return nil
		}
		if x := m.nodeOf[i]; x >= 0 { // views come of themselves
			seq = append(seq, x)
		}
	}
	return seq
}

// chain offers the best plan of the dynamic programme, if the problem is a
// chain that turns around where memory is fullest.
func (s *search) chain() {
	if !s.on(solverChain) || s.m.n > chainLimit || s.stopped() {
		return
	}
	if _, _, ok := s.sim.run(s.m.order); !ok {
		return
	}
	top := 0
	for k, b := range s.sim.mem {
		if b > s.sim.mem[top] {
			top = k
		}
	}
	// A step is worth some thousand slots.
	seq, work, ok := bestChain(s.sim, top, s.opt.Budget, 400*s.allowance())
	if ok {
		s.offer(seq, "chain")
	}
	s.steps += work / 4000
}

// chainLimit is how many nodes a chain may have to be looked at.
const chainLimit = 4096

// below asks greedy to stay within less than the budget: it is not monotone,
// and may manage there.
func (s *search) below() {
	low := s.m.footprint()
	for _, share := range []float64{0.02, 0.05, 0.1, 0.2, 0.35, 0.5} {
		budget := s.opt.Budget - int64(share*float64(s.opt.Budget-low))
		for _, o := range s.orders {
			for _, v := range greedyVariants {
				s.offer(s.greedy(o, budget, v, nil), "below-"+v.name)
				if s.steps > s.allowance()/4 {
					return
				}
			}
		}
		if s.best != nil || s.stopped() {
			return
		}
	}
}

// exhaust solves small problems outright.
func (s *search) exhaust() bool {
	if !s.on(solverExhaustive) || s.m.n > 12 || len(s.m.size) > 14 || len(s.m.must) > 0 {
		return false // the search does not know rules that want something computed again
	}
	seq, cost, known := exact(s.m, s.opt.Budget, 1<<17, s.stopped)
	if !known {
		return false
	}
	if seq != nil {
		s.offer(seq, "exact")
		s.lower, s.proof = cost, ProofExact
	}
	return true
}

func (s *search) done() bool {
	return s.best != nil && float64(s.cost-s.lower) <= s.opt.Gap*float64(s.m.base)
}

// allowance returns the steps of a solve: what was asked for, or what takes a
// few seconds on one core for problems of a few hundred to a few thousand ops.
// Where the cuts and what they guide have left a wide gap it is what takes half
// a minute.
func (s *search) allowance() int64 {
	if s.opt.Steps > 0 {
		return s.opt.Steps
	}
	if s.hard {
		if s.m.n > tapeLimit {
			return 5_000_000 // without tapes
		}
		if s.m.n <= 256 {
			return 6_400_000 + 1600*int64(s.m.n)
		}
		return 4_000_000 + 4000*int64(min(s.m.n, 1000))
	}
	return 800_000 + 80*int64(s.m.n)
}

// integer solves the integer version of the best cut, and lets greedy keep what
// each of the choices found keeps.
func (s *search) integer() {
	r := &s.swept
	if !s.on(solverInteger) || r.cut == nil {
		return
	}
	enough := int64(math.MaxInt64)
	if s.best != nil {
		enough = s.cost - s.m.base
	}
	limit := s.allowance() * 8 / 10
	res, exact := r.cut.programme(max(r.p, 1), r.lower, enough, min(s.allowance()*20, programmeWork), s.stopped)
	s.steps += res.work / 64
	limit += res.work / 64
	if !exact {
		// One evaluation costs about as much as a move per edge of the network.
		evals := int(s.allowance() * 20 / int64(len(r.cut.net.to)+64))
		l := res.lower
		res = r.cut.integer(r.p, enough, max(evals, 16), s.stopped)
		res.lower = max(res.lower, l)
		s.steps += int64(res.evals) * int64(len(r.cut.net.to)) / 64
	}
	if l := s.m.base + res.lower; l > s.lower {
		s.lower, s.proof = l, ProofCutInteger
	}
	if s.done() {
		return
	}
	if exact {
		before := s.steps
		s.tighter(&res, enough)
		limit += s.steps - before
	}
	weight := make([]float64, len(s.m.size))
	for k := len(res.kept) - 1; k >= 0 && k >= len(res.kept)-3; k-- {
		for _, w := range []float64{3, 10, 100, 1e5} {
			for u := range weight {
				weight[u] = 1
				if res.kept[k][u] {
					weight[u] = w
				}
			}
			s.weighted(weight, "integer-", limit)
			if s.stopped() && s.best != nil {
				return
			}
		}
	}
}

// tighter adds the choices for somewhat less memory, as long as they cost not much
// more than enough: other moments may be fuller than that of the cut, and what greedy
// then finds room for is cheaper again.
func (s *search) tighter(res *integerResult, enough int64) {
	r := &s.swept
	free := r.cut.free
	if s.best != nil {
		enough = res.lower + 16*(enough-res.lower)
	}
	for _, share := range []int64{1000, 100} {
		r.cut.free = free - s.opt.Budget/share
		more, _ := r.cut.programme(max(r.p, 1), res.lower, enough, s.allowance()*4, s.stopped)
		s.steps += more.work / 64
		if more.kept == nil {
			break
		}
		res.kept = append(res.kept, more.kept...)
	}
	r.cut.free = free
	slices.Reverse(res.kept) // the last is tried first
}

// weighted runs every greedy variant with weights, until limit steps in all.
func (s *search) weighted(weight []float64, prefix string, limit int64) {
	for _, o := range s.orders {
		for _, v := range greedyVariants {
			if s.stopped() || s.steps >= limit || (s.best == nil && s.steps >= s.allowance()/8) {
				return
			}
			s.offer(s.greedy(o, s.opt.Budget, v, weight), prefix+v.name)
		}
	}
}

// anneal improves the best sequence. Where there is none, or a poor one, it
// also starts from the orders, at a higher temperature.
func (s *search) anneal() {
	if !s.on(solverAnneal) {
		return
	}
	left := max(s.allowance()-s.steps, s.allowance()/4)
	first := s.best
	mean := float64(s.m.base) / float64(max(s.m.n, 1))
	usual := mix{moveRotate: 2, moveNear: 1, moveRemove: 2, moveAdd: 2, moveSwap: 2}
	// chains runs independent annealings, on as many threads as are allowed,
	// and looks at their results in order, so that threads change nothing.
	type chain struct {
		seq   []int32
		moves int64
		hot   float64
		cold  float64
		seed  uint64
		dear  bool // bytes over the limit are: it stays within, where the others pass over
		done  int64
		a     *annealer
	}
	chains := func(list []*chain) {
		s.parallel(len(list), func(k int) {
			c := list[k]
			c.a = newAnnealer(s.m, c.seq, s.opt.Budget, s.opt.Seed*1000003+c.seed)
			if c.dear {
				c.a.alpha, c.a.beta = 30, 30
			}
			c.done = c.a.run(c.moves, c.hot*mean, c.cold*mean, usual, s.stopped)
		})
		for _, c := range list {
			s.steps += c.done
			s.offer(c.a.best, "anneal")
			if c.a.best == nil && c.a.lowest != nil {
				s.low(c.a.lowest, c.a.lowPeak)
			}
		}
	}
	if s.best == nil || s.cost-s.lower > s.m.base/50 {
		share := left / int64(2*len(s.orders))
		if s.hard && s.m.n <= tapeLimit && s.solver != "tape" {
			share /= 2 // simple moves from the orders came to nothing; these may too
		}
		var list []*chain
		for k, o := range s.orders {
			o = s.again(o)
			if s.best == nil || s.cost-s.lower > s.m.base/20 {
				// Far from everything known: half of it much hotter.
				list = append(list,
					&chain{seq: o, moves: share / 2, hot: 0.5, cold: 0.003, seed: uint64(100 + k)},
					&chain{seq: o, moves: share / 2, hot: 3, cold: 0.01, seed: uint64(200 + k)})
				continue
			}
			list = append(list, &chain{seq: o, moves: share, hot: 0.5, cold: 0.003, seed: uint64(100 + k)})
		}
		chains(list)
		left -= share * int64(len(s.orders))
	}
	// Three rounds of two chains from the best so far. Where that leaves each
	// node many moves, more rounds, which start from where annealing started:
	// another way down may lead further.
	rounds := max(3, min(9, left/int64(6000*max(s.m.n, 1))))
	share := left / (2 * rounds)
	hot := 0.3
	for k := int64(0); k < rounds && s.best != nil && !s.done() && !s.stopped(); k++ {
		from, warm := s.best, hot/3
		if k >= 3 && first != nil {
			from, warm, hot = first, 0.15, 0.6
		}
		other := from
		if s.before != nil && (s.solver == "tape" || s.solver == "alike") && s.beforeCost-s.cost <= s.m.base/100 {
			other, warm = s.before, hot
		}
		chains([]*chain{
			{seq: from, moves: share, hot: hot, cold: 0.002, seed: uint64(2 * k)},
			{seq: other, moves: share, hot: warm, cold: 0.002, seed: uint64(2*k + 1), dear: true},
		})
		hot /= 2
	}
}

// tapeLimit is how many nodes a tape takes: shifting a stretch of it costs time
// in proportion.
const tapeLimit = 4096

// tapeMoves is how many moves of a tape count as one step.
const tapeMoves = 8

// tapes anneals the orders from scratch with simple moves. It finds orders that
// need less memory, and what to compute again in those, where layers give no
// structure to follow.
func (s *search) tapes() {
	total := s.allowance() * tapeMoves
	type try struct {
		a     *taper
		c     cooling
		moves int64
	}
	was := s.key
	if s.best == nil {
		was = math.MaxInt64
	}
	// run returns which of list is best, or -1 if none is better than what there was before tapes.
	run := func(list []try) int {
		best, key := -1, was
		done := make([]int64, len(list))
		s.parallel(len(list), func(k int) { done[k] = list[k].a.anneal(list[k].moves, list[k].c, s.stopped) })
		for k, t := range list {
			s.steps += done[k] / tapeMoves
			s.offer(t.a.best, "tape")
			if t.a.best != nil && t.a.bestBias < key {
				best, key = k, t.a.bestBias
			}
			if t.a.lowest != nil {
				if peak, _, ok := s.sim.run(t.a.lowest); ok {
					s.low(t.a.lowest, peak)
				}
			}
		}
		return best
	}
	seed := s.opt.Seed*1000003 + 300
	from := func(k int, moves int64) try {
		seed++
		return try{newTaper(s.m, s.orders[k%len(s.orders)], s.opt.Budget, seed), coolings[k], moves}
	}
	all := func(moves int64) int {
		var list []try
		for k := range coolings {
			list = append(list, from(k, moves))
		}
		return run(list)
	}
	k := all(total / 24)
	if s.done() || s.stopped() {
		return
	}
	// race lets starts compete: each gets as many moves, the better half goes on with twice as many.
	race := func(starts [][]int32, total int64) []int32 {
		keys := make([]int64, len(starts))
		for x := range keys {
			keys[x] = math.MaxInt64
		}
		rounds := int64(max(1, bits.Len(uint(len(starts)-1))))
		for len(starts) > 0 && !s.done() && !s.stopped() {
			each := total / rounds / int64(len(starts))
			list := make([]*taper, len(starts))
			done := make([]int64, len(starts))
			for x := range list {
				seed++
				list[x] = newTaper(s.m, starts[x], s.opt.Budget, seed)
			}
			s.parallel(len(list), func(k int) { done[k] = list[k].follow(each, s.stopped) })
			for x, a := range list {
				s.steps += done[x] / tapeMoves
				s.offer(a.best, "tape")
				keys[x] = min(keys[x], a.bestBias)
				if a.lowest != nil {
					if peak, _, ok := s.sim.run(a.lowest); ok {
						s.low(a.lowest, peak)
					}
				}
			}
			if len(starts) <= 2 {
				break
			}
			rank := make([]int, len(starts))
			for x := range rank {
				rank[x] = x
			}
			sort.SliceStable(rank, func(a, b int) bool { return keys[rank[a]] < keys[rank[b]] })
			half := (len(starts) + 1) / 2
			nextStarts, nextKeys := make([][]int32, half), make([]int64, half)
			for x := range nextStarts {
				nextStarts[x], nextKeys[x] = starts[rank[x]], keys[rank[x]]
			}
			starts, keys = nextStarts, nextKeys
		}
		return starts[0]
	}
	race(s.led(), total/2)
	if k < 0 || s.cost-s.lower > s.m.base/100 {
		return
	}
	// Near it, what differs from run to run is a few dear copies among many that all runs agree on.
	// Without some of them, there may be another way.
	var again []try
	for _, moves := range []int64{total / 24, total / 24, total / 24, total / 24, total / 24, total / 4} {
		again = append(again, from(k, moves))
	}
	run(again)
	r := rng(seed)
	tried := make([]bool, s.m.n)
	const side = 4 // runs at once
	together := 1  // copies taken out at once: two when each has been taken out alone
	for round := 0; round < 12 && !s.done() && !s.stopped() && s.solver == "tape"; round++ {
		picks := s.dear(side*together, tried, &r)
		if len(picks) == 0 && together == 1 {
			together = 2
			clear(tried)
			picks = s.dear(side*together, tried, &r)
		}
		var list []try
		for ; len(picks) >= together; picks = picks[together:] {
			seed++
			a := newTaper(s.m, s.best, s.opt.Budget, seed)
			for _, x := range picks[:together] {
				tried[x] = together == 1
				a.ban(x)
			}
			list = append(list, try{a, warmth, total / 128})
		}
		if len(list) == 0 {
			break
		}
		before := s.key
		if run(list); s.key < before {
			clear(tried)
			together = 1
		}
	}
}

// led returns sequences to start from: the orders, and what cuts at several moments would compute again, for the budget
// and for somewhat less, since a cut sees no other moment.
func (s *search) led() [][]int32 {
	starts := slices.Clone(s.orders)
	m := s.m
	if _, _, ok := s.sim.run(m.order); !ok {
		return starts
	}
	var over, nodes []int32
	for k, b := range s.sim.mem {
		if b > s.opt.Budget {
			over = append(over, m.order[k])
		}
	}
	const coarse = 24
	for k := 0; k < coarse && k < len(over); k++ {
		nodes = append(nodes, over[(2*k+1)*len(over)/(2*min(coarse, len(over)))])
	}
	if x := s.swept.node; x >= 0 && !contains(nodes, x) {
		nodes = append(nodes, x)
	}
	enough := s.steps + s.allowance()/8 // where steps are few, so are the cuts
	for _, less := range []int64{0, 80, 40, 20} {
		budget := s.opt.Budget
		if less > 0 {
			budget -= budget / less
		}
		type led struct {
			seq   []int32
			lower int64
		}
		var list []led
		for _, b := range nodes {
			if s.steps > enough || s.stopped() {
				break
			}
			c := newCut(m, s.kin, b, budget)
			r := c.maximise(0, 24)
			s.steps += int64(c.evals) * int64(len(c.net.to)) / 64
			if !r.possible || !r.fits || r.lower == 0 {
				continue
			}
			if _, ok := c.at(r.under.p); ok {
				list = append(list, led{c.phases(), r.lower})
			}
		}
		sort.SliceStable(list, func(a, b int) bool { return list[a].lower > list[b].lower })
		for k := 0; k < len(list) && k < 3; k++ {
			seq := list[k].seq
			if _, _, ok := s.sim.run(seq); ok && !slices.ContainsFunc(starts, func(o []int32) bool { return slices.Equal(o, seq) }) {
				starts = append(starts, seq)
			}
		}
	}
	return starts
}

// dear picks up to n nodes that the best plan computes again, the dearer the likelier, of those that were not tried.
func (s *search) dear(n int, tried []bool, r *rng) []int32 {
	runs := make([]int64, s.m.n)
	for _, x := range s.best {
		runs[x]++
	}
	var list []int32
	for len(list) < n {
		var sum int64
		price := func(x int) int64 {
			if tried[x] || runs[x] < 2 {
				return 0
			}
			return (runs[x] - 1) * s.m.bias[x]
		}
		for x := range runs {
			sum += price(x)
		}
		if sum == 0 {
			break
		}
		at := int64(r.float() * float64(sum))
		for x := range runs {
			if at -= price(x); at < 0 {
				list = append(list, int32(x))
				runs[x] = 0
				break
			}
		}
	}
	return list
}

// parallel calls f for 0 to n-1 on as many threads as are allowed. A panic of one comes out of parallel
// itself, with its place, so that who called the planner can recover from it.
func (s *search) parallel(n int, f func(k int)) {
	threads := max(1, min(s.opt.Threads, n))
	crashed := make([]string, threads)
	defer func() {
		for _, text := range crashed {
			if text != "" {
				panic(text)
			}
		}
	}()
	var wait sync.WaitGroup
	defer wait.Wait()
	for w := 0; w < threads; w++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer func() {
				if r := recover(); r != nil {
					crashed[w] = fmt.Sprintf("BUG: %s (%s)", strings.TrimPrefix(fmt.Sprint(r), "BUG: "), panicPlace())
				}
			}()
			for k := w; k < n; k += threads {
				f(k)
			}
		}()
	}
}

// panicPlace is the function and line that panicked, called while it is recovered from.
func panicPlace() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicked := false
	for {
		f, more := frames.Next()
		if panicked && !strings.HasPrefix(f.Function, "runtime.") || !more {
			return fmt.Sprintf("%s, %s:%d", f.Function, filepath.Base(f.File), f.Line)
		}
		panicked = panicked || f.Function == "runtime.gopanic"
	}
}

// low remembers a sequence with a small peak, for when nothing fits.
func (s *search) low(seq []int32, peak int64) {
	if s.m.tolled {
		seq = s.again(seq)
		var ok bool
		if peak, _, ok = s.sim.run(seq); !ok {
			return
		}
	}
	if s.lowSeq == nil || peak < s.lowPeak {
		s.lowSeq, s.lowPeak = seq, peak
	}
}

// bound raises the lower bound by cuts.
func (s *search) bound() {
	if s.kin == nil {
		s.kin = newKin(s.m)
	}
	if _, _, ok := s.sim.run(s.m.order); !ok {
		return
	}
	s.swept = sweep(s.m, s.kin, s.m.order, s.sim.mem, s.opt.Budget, min(60, 6+300_000/max(s.m.n, 1)), s.stopped)
	if l := s.m.base + s.swept.lower; l > s.lower {
		s.lower, s.proof = l, ProofCut
	}
}

// guided lets greedy keep what the best cut keeps.
func (s *search) guided() {
	r := &s.swept
	if !s.on(solverGuided) || r.cut == nil || !r.best.fits {
		return
	}
	// What both sides of the best price keep is sure; what only the cheaper
	// side keeps is kept as far as there is room.
	under := make([]bool, len(s.m.size))
	over := make([]bool, len(s.m.size))
	if _, ok := r.cut.at(r.best.over.p); !ok {
		return
	}
	r.cut.kept(over)
	if _, ok := r.cut.at(r.best.under.p); !ok {
		return
	}
	r.cut.kept(under)
	weight := make([]float64, len(s.m.size))
	limit := max(s.allowance()*4/10, s.steps+s.allowance()/8) // greedy by DTR's rule may have taken more than its share
	if s.hard {
		limit = s.steps + s.allowance()*4/10
	}
	for _, w := range guideWeights {
		for u := range weight {
			weight[u] = 1
			if over[u] {
				weight[u] = w[1]
			}
			if under[u] {
				weight[u] = w[0]
			}
		}
		s.weighted(weight, "guided-", limit)
		if s.stopped() && s.best != nil {
			return
		}
	}
}

// guideWeights are tried by guided: the weight of a buffer that both sides of
// the cut keep, and of one that only the cheaper side keeps.
var guideWeights = [...][2]float64{
	{1e6, 1e3}, {1e5, 1}, {100, 10}, {20, 1}, {100, 1}, {1e5, 1e5}, {5, 1}, {4, 2}, {2, 1},
}

type greedyVariant struct {
	name         string
	sizeP, distP float64
	online       bool // by time since the last use instead of time to the next
}

var greedyVariants = [...]greedyVariant{
	{"greedy", 1, 1, false},
	{"greedy-online", 1, 1, true}, // early, so that DTR's rule is always among those tried
	{"greedy-size", 1, 0, false},
	{"greedy-far", 1, 2, false},
	{"greedy-half", 0.5, 0.5, false},
}

func (s *search) greedy(order []int32, budget int64, v greedyVariant, weight []float64) []int32 {
	seq, steps := greedily(s.m, order, budget, v, weight)
	s.steps += steps
	return seq
}

// greedily is the sequence that a variant of the greedy solver finds, or nil, and the steps that it took.
func greedily(m *model, order []int32, budget int64, v greedyVariant, weight []float64) ([]int32, int64) {
	g := newGreedy(m, order)
	g.sizeP, g.distP, g.weight = v.sizeP, v.distP, weight
	if v.online {
		g.online, g.used = true, make([]int32, len(m.size))
	}
	seq := g.run(budget)
	return seq, g.visits / 64
}

// plan turns a sequence into a checked plan.
func (s *search) plan(seq []int32, solver string) (*Plan, error) {
	plan := &Plan{Order: s.m.emit(seq), Solver: solver, Seed: s.opt.Seed,
		LowerBound: s.lower, Proof: s.proof, Steps: s.steps}
	rep, err := s.opt.check(s.p, plan, -1)
	if err != nil {
		return nil, fmt.Errorf("planner: BUG: a solver made an illegal plan: %w", err)
	}
	if order := tidy(s.p, plan.Order); len(order) < len(plan.Order) && len(plan.Transfers) == 0 {
		// Where a rule wants something computed again and counts what nothing reads, the plan stays.
		less := &Plan{Order: order}
		if r, err := s.opt.check(s.p, less, -1); err == nil && r.PeakBytes <= rep.PeakBytes {
			plan.Order, rep = order, r
		}
	}
	plan.fill(rep)
	if s.opt.Layout {
		if err := layout(s.p, plan, s.opt.Align); err != nil {
			return nil, err
		}
	}
	plan.Seconds = time.Since(s.start).Seconds()
	plan.finish()
	return plan, nil
}

// smallest returns the sequence with the smallest peak that it finds. It does
// not depend on the budget or the steps of the search, so that what MinBudget
// finds, Solve finds.
func (s *search) smallest() []int32 {
	if s.found.seq == nil {
		s.find()
	}
	if s.lowSeq != nil && s.lowPeak < s.found.peak {
		return s.lowSeq
	}
	return s.found.seq
}

// find looks for the smallest plan, unless a search before this one did.
func (s *search) find() {
	known := s.opt.Known
	if known != nil && known.problem == s.p && known.seed == s.opt.Seed {
		s.found = known.small
		s.steps += s.found.steps
	} else {
		before := s.steps
		s.found.seq, s.found.peak = s.findSmallest()
		s.found.steps = s.steps - before
	}
	if known != nil && !s.stopped() {
		known.problem, known.seed, known.small = s.p, s.opt.Seed, s.found
	}
}

// least is smallest as a sequence that obeys all policies. The error is a
// *ProblemError where none was found.
func (s *search) least() ([]int32, error) {
	seq := s.again(s.smallest())
	if _, _, ok := s.sim.run(seq); ok && s.obeys(seq) {
		return seq, nil
	}
	for b, toll := range s.m.toll {
		if toll {
			v := s.p.Ops[s.m.op[s.m.prod[b]]].Outputs[0]
			return nil, valueErr(v, "no order was found in which %s and all else that must be recomputed can be", s.p.valueName(v))
		}
	}
	return nil, opErr(-1, "no order of the ops was found that obeys the policies")
}

// leastBytes returns a number of bytes that no plan can do with less than: the
// largest working set, or what a cut at one of the fullest moments has to keep.
func (s *search) leastBytes() int64 {
	least := s.m.footprint()
	if s.kin == nil {
		s.kin = newKin(s.m)
	}
	if _, _, ok := s.sim.run(s.m.order); !ok {
		return least
	}
	byMem := make([]int, len(s.m.order))
	for k := range byMem {
		byMem[k] = k
	}
	sort.SliceStable(byMem, func(a, b int) bool { return s.sim.mem[byMem[a]] > s.sim.mem[byMem[b]] })
	for k := 0; k < len(byMem) && k < 16; k++ {
		least = max(least, newCut(s.m, s.kin, s.m.order[byMem[k]], math.MaxInt64/4).least())
	}
	return least
}

func (s *search) infeasible(asked int64) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	e := &InfeasibleError{Budget: asked, LowerBoundBytes: s.leastBytes()}
	seq, err := s.least()
	if err != nil {
		return err
	}
	s.lower, s.proof = s.m.base+s.m.atLeast, ProofBase // what is known of the budget asked for says nothing of this plan's
	plan, err := s.plan(seq, "min-budget")
	if err != nil {
		return err
	}
	e.MinBudget = max(plan.PeakBytes, plan.ArenaBytes)
	rep, err := s.opt.check(s.p, plan, -1)
	if err != nil {
		return err
	}
	e.bind(s.p, rep)
	return e
}

// bind names what is live at the peak of the smallest plan.
func (e *InfeasibleError) bind(p *Problem, rep Report) {
	e.Binding = rep.LiveAtPeak
	for k, v := range e.Binding {
		if k == 8 {
			break
		}
		e.names = append(e.names, fmt.Sprintf("%s (%d bytes)", p.valueName(v), p.Values[v].Bytes))
	}
}
