package ops

import "reprise/ir"

func contractOps() []*ir.OpDef { return nil }
