package planner

import "context"

// Bound returns what no legal plan within opt.Budget can cost less than, and the kind of proof behind it. It
// serves whoever has a plan from elsewhere: Solve and MinBudget bound their own, the latter only by ProofBase.
func Bound(ctx context.Context, p *Problem, opt Options) (cost int64, proof string, err error) {
	if err := p.Validate(); err != nil {
		return 0, "", err
	}
	s := newSearch(ctx, p, opt)
	// What moves to the host is in no cut: with a link only the base cost is sure.
	if p.Offload == nil && s.opt.Budget >= s.m.footprint() && !s.exhaust() {
		s.bound()
		s.integer()
	}
	return s.lower, s.proof, ctx.Err()
}

// LeastBytes returns a number of bytes that no legal plan can do with less than, for problems without a link to
// a host.
func LeastBytes(p *Problem) (int64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if err := noLink(p); err != nil {
		return 0, err
	}
	return newSearch(context.Background(), p, Options{}).leastBytes(), nil
}
