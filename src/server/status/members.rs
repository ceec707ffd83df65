//! The members of the store in `kube-lite status`.

use store::{Members, Role};

use crate::server::members::{UNRESPONSIVE_AFTER, accepts_connections};
use crate::status::{MemberLine, Problem};

/// All members of a store with several. The leader knows which ones respond; another member only
/// knows which ones it cannot connect to.
pub(super) async fn lines(members: &Members) -> Vec<MemberLine> {
    let all = members.list();
    if all.len() < 2 {
        return Vec::new();
    }
    let (leader, heard) =
        (members.leadership().borrow().leader, members.responsive(UNRESPONSIVE_AFTER));
    let line = |member: store::Member| MemberLine {
        id: format!("{:016x}", member.id),
        role: match member.role {
            _ if leader == Some(member.id) => "leader",
            Role::Voter => "voter",
            Role::Learner => "learner",
        }
        .to_owned(),
        own: member.id == members.id(),
        heard: heard.as_ref().map(|heard| heard.contains(&member.id)),
        address: member.address,
    };
    let reached = async |mut line: MemberLine| {
        if line.heard.is_none()
            && !line.own
            && !line.address.is_empty()
            && !accepts_connections(&line.address).await
        {
            line.heard = Some(false);
        }
        line
    };
    futures::future::join_all(all.into_iter().map(line).map(reached)).await
}

/// The problems of the members.
pub(super) fn problems(lines: &[MemberLine]) -> Vec<Problem> {
    let of = |role: &str| lines.iter().filter(|line| line.role == role).count();
    let mut problems = Vec::new();
    let voters = of("voter") + of("leader");
    if !lines.is_empty() && of("leader") == 0 {
        problems.push(Problem::new(
            "the store has no leader: writes fail",
            "more than half of the voters must run and reach each other; check the other servers",
        ));
    }
    for lost in lines.iter().filter(|line| line.heard == Some(false)) {
        problems.push(Problem::new(
            format!("the server at {} does not respond", lost.address),
            "check that the machine has power and network and that kube-lite runs on it",
        ));
    }
    if voters == 1 && of("learner") == 1 {
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

    fn line(role: &str, heard: Option<bool>) -> MemberLine {
        let address = format!("192.0.2.{}:2380", role.len());
        MemberLine { id: "1".into(), address, role: role.into(), own: false, heard }
    }

    #[test]
    fn missing_leader_member_and_third_server_are_problems() {
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
