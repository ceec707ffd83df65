//! The members of a replicated store and their problems, for `kube-lite status`.

use store::{Members, Role};

use crate::server::members::{UNRESPONSIVE_AFTER, accepts_connections};
use crate::status::{MemberLine, Problem};

/// One line per member of a store with several; none for a store with one.
///
/// Members respond to the leader only, so `MemberLine::heard` is complete on the leader. Another
/// member tries to connect to each: `Some(false)` for failure, `None` otherwise, because a machine
/// that accepts connections may still not respond to the leader.
pub(super) async fn lines(members: &Members) -> Vec<MemberLine> {
    let all = members.list();
    if all.len() < 2 {
        return Vec::new();
    }
    let leader = members.leadership().borrow().leader;
    // `None` unless this member is the leader.
    let responses = members.responses(UNRESPONSIVE_AFTER);
    let line = |member: store::Member| MemberLine {
        id: format!("{:016x}", member.id),
        role: match member.role {
            _ if leader == Some(member.id) => "leader",
            Role::Voter => "voter",
            Role::Learner => "learner",
        }
        .to_owned(),
        own: member.id == members.id(),
        heard: responses
            .as_ref()
            .filter(|responses| !responses.unknown.contains(&member.id))
            .map(|responses| responses.responsive.contains(&member.id)),
        address: member.address,
    };
    let with_connection_check = async |mut line: MemberLine| {
        if line.heard.is_none()
            && !line.own
            && !line.address.is_empty()
            && !accepts_connections(&line.address).await
        {
            line.heard = Some(false);
        }
        line
    };
    futures::future::join_all(all.into_iter().map(line).map(with_connection_check)).await
}

/// The problems that the lines of all members show.
pub(super) fn problems(lines: &[MemberLine]) -> Vec<Problem> {
    let count = |role: &str| lines.iter().filter(|line| line.role == role).count();
    let mut problems = Vec::new();
    let voters = count("voter") + count("leader");
    if !lines.is_empty() && count("leader") == 0 {
        problems.push(Problem::new(
            "the store has no leader: writes fail",
            "more than half of the voters must run and reach each other; check the other servers",
        ));
    }
    for unresponsive in lines.iter().filter(|line| line.heard == Some(false)) {
        problems.push(Problem::new(
            format!("the server at {} does not respond", unresponsive.address),
            "check that the machine has power and network and that kube-lite runs on it",
        ));
    }
    // The leader keeps the number of voters odd, so the second of two servers stays a learner.
    if voters == 1 && count("learner") == 1 {
        problems.push(Problem::new(
            "two servers cannot fail over: only one of them votes",
            "add a third one (`kube-lite server --server=https://THIS:6443 --token=...`): then any one of them can fail",
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of another member. The address depends on the role, so that messages differ.
    fn line(role: &str, heard: Option<bool>) -> MemberLine {
        let address = format!("192.0.2.{}:2380", role.len());
        MemberLine { id: "1".into(), address, role: role.into(), own: false, heard }
    }

    #[test]
    fn a_missing_leader_an_unresponsive_member_and_a_single_voter_of_two_are_problems() {
        let check = |lines: &[MemberLine]| -> Vec<String> {
            problems(lines).into_iter().map(|problem| problem.what).collect()
        };
        assert!(check(&[]).is_empty());
        let leader = line("leader", Some(true));
        assert_eq!(
            check(&[leader.clone(), line("learner", Some(true))]),
            ["two servers cannot fail over: only one of them votes"]
        );
        assert!(
            check(&[leader.clone(), line("voter", Some(true)), line("voter", None)]).is_empty()
        );
        assert_eq!(
            check(&[leader, line("voter", Some(true)), line("voter", Some(false))]),
            ["the server at 192.0.2.5:2380 does not respond"]
        );
        assert_eq!(
            check(&[line("voter", None), line("voter", None), line("voter", None)]),
            ["the store has no leader: writes fail"]
        );
    }
}
