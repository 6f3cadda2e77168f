"""ServerUpdate of Algorithm 1 and Algorithm 2 again: written from the paper, in loops over floats.

Symbols are the paper's. Where the printed formulas have no value, it does what `docs/concepts.md` says.
"""

from math import exp, sqrt


class Server:
    """The server thread: cluster models w, epochs e and t, and the last estimate of each client."""

    def __init__(self, w, loss, **settings):
        self.w = [list(model) for model in w]
        self.loss = loss  # loss(model, k) = F(model; D_k)
        self.e = [0] * len(w)
        self.t = 0
        self.alpha = {}  # client -> last estimate
        self.s = settings
        self.means = [[0.0] * len(w) for _ in range(3)]  # running means of l, d1 and d2
        self.below_bar = 0  # number of measures of the last upload with a value below their numeric bar

    def receive(self, m, v, tau, began=None):
        """Client m uploads (v, tau), trained from `began`. Returns u, estimate, rates and whether it is deprecated."""
        self.t = self.t + 1
        self.below_bar = 0
        K = len(self.w)
        if self.s["tau_0"] is not None and self.t - tau > self.s["tau_0"]:
            alpha = self.alpha.get(m, [1 / K] * K)
            return self.reply(alpha), alpha, [0.0] * K, True
        alpha = self.distribution_estimation(v)
        beta = self.update_ratio_compute(alpha, tau)
        if began is None:  # unknown: what the client would be sent now
            began = self.reply(self.alpha.get(m, [1 / K] * K))
        for k in range(K):
            for j in range(len(v)):
                if beta[k] != 0 and self.s["step"] == "along":  # not the paper's
                    self.w[k][j] = self.w[k][j] + beta[k] * (v[j] - began[j])
                elif beta[k] != 0:
                    self.w[k][j] = (1 - beta[k]) * self.w[k][j] + beta[k] * v[j]
        self.alpha[m] = alpha
        return self.reply(alpha), alpha, beta, False

    def reply(self, alpha):
        """u = sum_k alpha_k w_k; or, as the workflow figure says, without the clusters that are not updated."""
        K = len(self.w)
        weights = list(alpha)
        if self.s["reply"] == "moved":
            weights = [alpha[k] if not self.below_floor(alpha, k) else 0.0 for k in range(K)]
            if sum(weights) == 0:
                weights = list(alpha)
            total = sum(weights)
            weights = [weight / total for weight in weights]
        u = []
        for j in range(len(self.w[0])):
            u.append(sum(weights[k] * self.w[k][j] for k in range(K)))
        return u

    def distribution_estimation(self, v):
        """First half of Algorithm 2."""
        K = len(self.w)
        l, d1, d2 = [], [], []  # noqa: E741
        for k in range(K):
            l.append(self.loss(v, k))
            d1.append(abs(self.loss(self.w[k], k) - l[k]))
            d2.append(sqrt(sum((a - b) ** 2 for a, b in zip(v, self.w[k], strict=True))))
        if self.s["measures"] == "relative":  # not the paper's
            compared = [self.relative(*pair) for pair in zip((l, d1, d2), self.means, strict=True)]
            self.means = [self.means_after(*pair) for pair in zip((l, d1, d2), self.means, strict=True)]
            l, d1, d2 = compared  # noqa: E741
        if K == 1:
            return [1.0]
        parts = []
        for values, bar in ((l, self.s["l_bar"]), (d1, self.s["d1_bar"]), (d2, self.s["d2_bar"])):
            if bar != "min" and min(values) < bar:
                self.below_bar += 1
            values = [value - (min(values) if bar == "min" else bar) for value in values]
            parts.append(self.shares_of_the_others(values))
        c1, c2 = self.s["c1"], self.s["c2"]
        alpha = []
        for k in range(K):
            alpha.append((c1 * parts[0][k] + c2 * parts[1][k] + (1 - c1 - c2) * parts[2][k]) / (K - 1))
        for A in self.s["A"]:
            powers = [exp((a - max(alpha)) * A) for a in alpha]
            alpha = [power / sum(powers) for power in powers]
        return alpha

    @staticmethod
    def relative(values, means):
        """Each value divided by its cluster's running mean, times the average mean."""
        K = len(values)
        if min(means) <= 0:  # no upload yet, or not a divisor
            return values
        return [values[k] / means[k] * (sum(means) / K) for k in range(K)]

    def means_after(self, values, means):
        """The mean of all values so far and of one that is the same for all clusters; later of recent values."""
        rate = max(1 / 50, 1 / (self.t + 1))
        after = []
        for k in range(len(values)):
            before = means[k] if means[k] != 0 else sum(values) / len(values)
            after.append((1 - rate) * before + rate * values[k])
        return after

    @staticmethod
    def shares_of_the_others(values):
        """sum_{i != k} x_i / sum_i x_i; if that sum is only rounding, every cluster counts the same."""
        K = len(values)
        if abs(sum(values)) <= 1e-6 * sum(abs(value) for value in values):
            return [(K - 1) / K] * K
        shares = []
        for k in range(K):
            shares.append(sum(values[i] for i in range(K) if i != k) / sum(values))
        return shares

    def below_floor(self, alpha, k):
        """beta_1k < beta_1bar, but not by rounding alone."""
        bar = sum(alpha) / len(alpha) if self.s["beta_1bar"] == "ave" else self.s["beta_1bar"]
        return alpha[k] < bar - 1e-12

    def update_ratio_compute(self, alpha, tau):
        """Second half of Algorithm 2."""
        a, b = self.s["a"], self.s["b"]
        beta = []
        for k in range(len(alpha)):
            e_before = self.e[k]
            if self.below_floor(alpha, k):
                beta_1 = 0.0
            else:
                beta_1 = alpha[k] / max(alpha)
                self.e[k] = self.t
            e = self.e[k] if self.s["e_k"] == "before" else e_before
            if e - tau < b:
                beta_2 = 1.0
            elif self.s["hinge"] == "paper":
                beta_2 = 1 / (a * (e - tau) + 1)
            else:  # FedAsync's
                beta_2 = 1 / (a * (e - tau - b) + 1)
            beta.append(self.s["beta_0"] * beta_1 * beta_2)
        return beta
