package policy

import (
	"strings"

	"reprise/planner"
)

// refuse is an error where a rule names a layer by itself, not as one of many, and says that what runs once there
// must be computed again: that can't be, and a rule with "must" is not a wish. A rule for many layers leaves
// out what is pinned, and its report says so.
func (p *Policy) refuse(x *context, decided []decision) error {
	for k, c := range x.cands {
		d := &decided[k]
		op := &x.problem.Problem.Ops[c.op]
		if d.verdict != mustRecompute || !op.RunsOnce() {
			continue
		}
		for i := range p.rules {
			r := &p.rules[i]
			if r.Where != d.where || lastPart(r.Layer) == "" || lastPart(r.Layer) != lastPart(c.layer) {
				continue
			}
			e := bad(r.Where, "rule %q: %s of layer %s can't be computed again: %s", r.Text, c.kinds[0], c.layer, c.kept)
			e.Layer, e.Op = c.layer, c.kinds[0]
			if op.Effect != planner.EffectNone && op.Effect != planner.EffectComm {
				return e.WithHint("leave it out: what has an effect happens once; \"prefer recompute\" takes what may run again")
			}
			return e.WithHint("write \"prefer recompute\", which takes what may run again; or opt out with \"allow-recompute layer=%s\", with which gradients may be silently wrong", c.layer)
		}
	}
	return nil
}

// lastPart is the last name of a layer path, "" where it is a pattern.
func lastPart(layer string) string {
	name := layer[strings.LastIndexByte(layer, '.')+1:]
	if strings.ContainsAny(name, "*?") {
		return ""
	}
	return name
}
